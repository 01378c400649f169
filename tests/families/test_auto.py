"""The options chosen for `states = auto`: by size and kind of text, by speed, and never those that were set."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import trellis
from running import run
from trellis.config import RunConfig, load_config, run_config, seconds_of
from trellis.errors import TrellisError
from trellis.families.hmm import auto
from trellis.families.hmm.auto import Candidate, Facts, candidates, plan
from trellis.families.hmm.config import HMMConfig
from trellis.options import to_toml

WORDS = Facts(tokens=1_000_000, types=30_000, records=False)
LETTERS = Facts(tokens=1_000_000, types=29, records=False, contexts=(192,) * 29)
SENTENCES = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs"] * 100


def pick(facts: Facts, per_token: float, limit: float = auto.USUAL_TIME) -> dict[str, Any]:
    return plan(list(candidates(facts)), facts.tokens, lambda options: per_token, limit)[0]


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose speed does not vary."""
    monkeypatch.setattr(auto, "seconds_per_token", lambda *_: 1e-6)


def test_every_candidate_is_a_valid_run() -> None:
    for facts in (WORDS, LETTERS, WORDS._replace(gpu=True), LETTERS._replace(records=True), WORDS._replace(tokens=900)):
        found = list(candidates(facts))
        assert found
        for one in found:
            assert 1 <= one.fewest <= one.epochs
            config = RunConfig().with_options(one.options)
            assert config.model.states > 0
            assert config.model.emission in ("cloned", "brown")


def test_words_get_classes_and_symbols_get_contexts() -> None:
    assert pick(WORDS, 1e-6)["model.emission"] == "brown"
    letters = pick(LETTERS, 1e-6)
    assert (letters["model.emission"], letters["model.init"]) == ("cloned", "contexts")
    assert letters["train.learner"] == "stepwise-em"
    assert pick(LETTERS._replace(records=True), 1e-6)["train.learner"] == "em"


def test_a_few_words_that_are_rare_get_classes() -> None:
    rare = auto.facts_of(trellis.read_corpus(SENTENCES[:40], tokenizer="whitespace"), "streams", "cpu")
    often = auto.facts_of(trellis.read_corpus(SENTENCES, tokenizer="whitespace"), "streams", "cpu")
    assert (rare.types, rare.contexts) == (often.types, ())
    assert len(often.contexts) == often.types
    options = pick(rare, 1e-6)
    assert options["model.classes"] <= rare.types
    assert options["train.epochs"] * rare.tokens > auto.FEWEST_TOKENS // 2


def test_more_text_gets_more_states() -> None:
    states = [pick(WORDS._replace(tokens=tokens), 1e-9)["model.states"] for tokens in (30_000, 200_000, 1_000_000)]
    assert states == sorted(states)
    assert states[0] < states[-1]
    large = [
        pick(WORDS._replace(tokens=tokens, gpu=True), 1e-9)["model.states"] for tokens in (30_000, 200_000, 1_000_000)
    ]
    assert large == sorted(set(large))
    assert large[-1] == 65536


def test_states_per_class_of_small_texts() -> None:
    found = [pick(WORDS._replace(tokens=tokens), 1e-9) for tokens in (2_000, 15_000, 45_000, 200_000)]
    assert [one["model.states"] // one["model.classes"] for one in found] == [16, 64, 128, 64]


def test_short_texts_and_large_models_on_a_gpu_get_dropout() -> None:
    def dropout(tokens: int) -> list[bool]:
        found = [one.options for one in candidates(WORDS._replace(tokens=tokens, gpu=True))]
        return ["model.dropout" in one for one in found if one.get("model.params") == "neural"]

    assert all(dropout(200_000))
    assert dropout(1_000_000) == sorted(dropout(1_000_000), reverse=True)
    assert {True, False} == {*dropout(1_000_000)}


def test_a_slow_machine_gets_fewer_epochs_then_a_smaller_model() -> None:
    quick, slow, slower = (pick(WORDS, per_token) for per_token in (1e-6, 8e-5, 1e-3))
    assert quick["model.states"] == slow["model.states"]
    assert quick["train.epochs"] > slow["train.epochs"]
    assert slower.get("model.params", "table") == "table"


def test_the_plan_keeps_to_the_time() -> None:
    found = [Candidate({"model.states": n}, epochs=10, fewest=2, reason="") for n in (8, 4, 2)]

    def speed(options: dict[str, Any]) -> float:
        return options["model.states"] / 10

    for limit, states, epochs in ((1000.0, 8, 10), (500.0, 8, 6), (100.0, 4, 2), (1.0, 2, 1)):
        options, _, seconds = plan(found, 100, speed, limit)
        assert (options["model.states"], options["train.epochs"]) == (states, epochs)
        assert seconds == pytest.approx(epochs * 100 * states / 10)


def test_what_was_set_is_kept(tmp_path: Path) -> None:
    trained = trellis.train(SENTENCES, tmp_path / "run", epochs=1, pseudocount=1e-4, tokenizer="whitespace")
    config = load_config(tmp_path / "run" / "config.toml")
    assert (config.train.epochs, config.train.pseudocount) == (1, 1e-4)  # equal to the default, and yet set
    assert config.model.emission == "cloned"
    assert trained.history[-1]["epoch"] == 1


@pytest.mark.parametrize(
    ("settings", "states"),
    [({"emission": "full"}, 256), ({"emission": "brown", "classes": 3}, 255), ({"learner": "gradient"}, 256)],
)
def test_other_kinds_of_models_get_a_number_of_states(settings: dict[str, Any], states: int) -> None:
    chosen = trellis.train(SENTENCES, epochs=1, tokenizer="whitespace", **settings).model
    assert chosen.num_states == states


def test_classes_that_were_set_divide_the_states() -> None:
    given = run_config({"model": {"classes": 100}})
    options = auto.filled(given, pick(WORDS, 1e-6))
    assert (options.model.classes, options.model.states % 100) == (100, 0)


def test_a_number_of_states_leaves_everything_else_alone(tmp_path: Path) -> None:
    trellis.train(SENTENCES, tmp_path / "run", states=4, epochs=1)
    config = load_config(tmp_path / "run" / "config.toml")
    assert config.model == HMMConfig(states=4)


def test_a_small_text_gets_more_epochs(caplog: pytest.LogCaptureFixture) -> None:
    small, large = trellis.read_corpus(SENTENCES), trellis.read_corpus(SENTENCES * 400)
    run = RunConfig(model=HMMConfig(states=4))
    with caplog.at_level(logging.INFO):
        chosen = auto.choose(run, small, "cpu").train
    assert (chosen.epochs, chosen.patience) == (auto.FEWEST_STEPS, auto.PATIENCE)  # one batch per epoch
    assert f"train.epochs = {auto.FEWEST_STEPS}" in caplog.text
    assert 10 < auto.choose(run.with_options({"batches.lanes": 2}), small, "cpu").train.epochs < auto.FEWEST_STEPS
    assert auto.choose(run.with_options({"batches.lanes": 2}), large, "cpu").train == run.train
    for name, value in (("epochs", 3), ("max_steps", 3), ("patience", 3)):
        given = run.with_options({f"train.{name}": value})
        assert auto.choose(given, small, "cpu") == given


def test_a_run_records_the_choice_and_resumes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"tokenizer": "whitespace", "run": tmp_path / "run"}
    first = trellis.train(SENTENCES, epochs=2, **settings)
    before = load_config(tmp_path / "run" / "config.toml")
    monkeypatch.setattr(auto, "seconds_per_token", lambda *_: pytest.fail("chosen again"))
    again = trellis.train(SENTENCES, resume=True, epochs=3, **settings)
    after = load_config(tmp_path / "run" / "config.toml")
    assert (after.model, after.batches) == (before.model, before.batches)
    assert (first.history[-1]["epoch"], again.history[-1]["epoch"]) == (2, 3)


def test_the_recorded_run_gives_the_same_model(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tokenizer": "whitespace", "epochs": 2}
    first = trellis.train(SENTENCES, tmp_path / "run", **settings)
    model = load_config(tmp_path / "run" / "config.toml").model
    options = {name: getattr(model, name) for name in ("states", "emission", "init")}
    train = load_config(tmp_path / "run" / "config.toml").train
    again = trellis.train(
        SENTENCES, **settings, **options, learner=train.learner, pseudocount=train.pseudocount, patience=train.patience
    )
    assert first.scores is not None
    assert again.scores is not None
    assert again.scores.values == first.scores.values


def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        trellis.train(SENTENCES, epochs=1, tokenizer="whitespace")
    text = caplog.text
    assert "model.states = auto" in text
    assert "training will take about" in text
    assert "train.epochs" not in text.split("model.emission")[1].splitlines()[0]  # it was set


def test_speed_is_measured_on_real_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    corpus = trellis.read_corpus(SENTENCES, tokenizer="whitespace")
    given = run_config({"model": {"states": 4}, "batches": {"lanes": 4, "window": 8}}).ordered()
    assert 0 < auto.seconds_per_token(given, corpus, "cpu") < 1


def test_auto_is_written_as_a_word() -> None:
    assert run_config({"model": {"states": "auto"}}) == RunConfig()
    assert run_config({}, ["model.states=auto"]).model.states == 0
    with pytest.raises(TrellisError, match=r"model\.classes must be an integer, not 'auto'"):
        run_config({"model": {"classes": "auto"}})


def test_a_budget_is_a_time() -> None:
    assert [seconds_of(one) for one in ("90", "30s", "1.5m", "2h")] == [90.0, 30.0, 90.0, 7200.0]
    for wrong in ("soon", "-5m", "0s", "m", "inf"):
        with pytest.raises(TrellisError, match="write a time such as"):
            RunConfig(budget=wrong)
    with pytest.raises(TrellisError, match="not trained step by step"):
        run_config({"model": {"family": "ngram"}, "budget": "5m"})


def test_the_command_takes_auto_and_a_budget(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    arguments = ["--data", str(tmp_path / "text.txt"), "--run", str(tmp_path / "run"), "--set", "train.epochs=1"]
    assert run("train", "--states", "auto", "--budget", "1m", *arguments) == 0
    config = load_config(tmp_path / "run" / "config.toml")
    assert (config.budget, config.train.max_seconds, config.model.init) == ("1m", 60.0, "contexts")


def test_a_budget_limits_the_time_of_any_family(tmp_path: Path) -> None:
    trellis.train(SENTENCES, tmp_path / "run", family="lstm", dim=2, epochs=1, budget="100s")
    assert load_config(tmp_path / "run" / "config.toml").train.max_seconds == 100.0


def test_what_was_set_is_not_an_option_of_the_file() -> None:
    given = run_config({"train": {"epochs": 10}})
    assert "train.epochs" in given.given
    assert "given" not in to_toml(given)
    with pytest.raises(TrellisError, match="given"):
        run_config({"given": ["train.epochs"]})
