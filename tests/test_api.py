"""The library from Python: every public name, with text as a string, a list, a path and an array."""

from __future__ import annotations

import doctest
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from running import run
from trellis.config import DataConfig, RunConfig
from trellis.corpus import Corpus
from trellis.families.crf.config import CRFTaggerConfig
from trellis.families.ngram.config import BigramConfig
from trellis.models.base import LanguageModel

SENTENCES = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs and the dog sees"] * 15
TWO = ["the cat runs", "a dog sees"]
TOKENS = [sentence.split() for sentence in SENTENCES]
TAGGED = [[("the", "D"), ("cat", "N"), ("sees", "V")], [("a", "D"), ("dog", "N"), ("runs", "V")]] * 30
SMALL: dict[str, dict[str, Any]] = {  # of each family, what trains at once
    "hmm": {"states": 3, "epochs": 1},
    "fhmm": {"layers": 2, "states": 2, "epochs": 1},
    "lds": {"dim": 2, "epochs": 1, "horizon": 2, "blocks": 2},
    "ngram": {"order": 2},
    "unigram": {},
    "bigram": {},
    "feedforward": {"dim": 3, "epochs": 1},
    "lstm": {"dim": 3, "epochs": 1},
    "rnn": {"dim": 3, "epochs": 1},
    "hmm-tagger": {"states": 3, "epochs": 1},
    "pcfg": {"nonterminals": 2, "preterminals": 3, "dim": 4, "epochs": 1},
    "crf": {"iterations": 5},
}


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a cache inside it, that are both empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def data_for(family: str) -> Any:
    return TAGGED if family in ("hmm-tagger", "crf") else SENTENCES


@pytest.mark.parametrize("family", SMALL)
def test_train_from_a_list_writes_nothing(family: str, nowhere: Path) -> None:
    trained = trellis.train(data_for(family), family=family, device="cpu", **SMALL[family])
    assert trained.model.family in (family, "ngram")
    assert trained.scores is not None
    assert all(np.isfinite(value) for value in trained.scores.values.values())
    assert trained.run is None
    assert not trained.interrupted
    assert list(nowhere.iterdir()) == []
    assert repr(trained.model).endswith("words, trained on 60 sentences>")
    assert trained.model.about["corpus"].startswith("60 sentences: ")


@pytest.mark.parametrize("family", SMALL)
def test_a_run_keeps_the_model_that_was_returned(family: str, nowhere: Path) -> None:
    data = data_for(family)
    trained = trellis.train(data, family=family, run=nowhere / "run", device="cpu", **SMALL[family])
    again = trellis.load(nowhere / "run")
    assert type(again) is type(trained.model)
    ours, theirs = trained.model.tensors(), again.tensors()
    assert all(np.array_equal(ours[name].numpy(), theirs[name].numpy()) for name in ours)
    assert again.about == json.loads(json.dumps(trained.model.about))
    assert repr(again) == repr(trained.model)
    results = json.loads((nowhere / "run" / "results.json").read_text())
    assert (results["schema"], results["family"]) == (1, again.family)
    assert results["scores"]["values"] == pytest.approx(dict(trained.scores.values))


def test_the_same_with_and_without_a_folder(nowhere: Path) -> None:
    settings = {"states": 3, "epochs": 3, "params": "neural", "dim": 4, "learner": "gradient", "patience": 1}
    written = trellis.train(SENTENCES, run=nowhere / "run", device="cpu", **settings)
    held = trellis.train(SENTENCES, device="cpu", **settings)
    for name, value in written.model.tensors().items():
        np.testing.assert_array_equal(held.model.tensors()[name].numpy(), value.numpy())
    assert [line["valid_ppl"] for line in held.history] == [line["valid_ppl"] for line in written.history]
    assert written.history == [
        json.loads(line) for line in (nowhere / "run" / "metrics.jsonl").read_text().splitlines()
    ]


def test_data_of_every_kind(nowhere: Path) -> None:
    file = nowhere / "text.txt"
    file.write_text("\n".join(SENTENCES) + "\n")
    ids = np.array([[1, 2, 3], [3, 2, 1], [2, 2, 1]] * 20)
    found = {
        "strings": SENTENCES,
        "tokens": TOKENS,
        "path": file,
        "string": str(file),
        "corpus": trellis.read_corpus(SENTENCES),
        "array": ids,
        "arrays": list(ids),
    }
    models = {name: trellis.train(data, family="bigram", device="cpu").model for name, data in found.items()}
    assert models["strings"].vocab == models["tokens"].vocab == models["corpus"].vocab
    assert set(models["path"].vocab.words) == set(models["string"].vocab.words) == set(models["strings"].vocab.words)
    assert set(models["array"].vocab.words) == set(models["arrays"].vocab.words) == {"1", "2", "3", "<eos>", "<unk>"}
    config = RunConfig(data=DataConfig(source=str(file)), model=BigramConfig(), device="cpu")
    assert trellis.train(config).model.vocab == models["path"].vocab


def test_settings_go_where_they_belong() -> None:
    trained = trellis.train(SENTENCES, states=3, epochs=2, tokens=64, lower=True, device="cpu", batches={"window": 9})
    assert trained.model.num_states == 3
    assert trained.training["epoch"] == 2
    both = trellis.train(
        SENTENCES, family="feedforward", window=3, dim=4, epochs=1, batches={"window": 9}, device="cpu"
    )
    assert both.model.window == 3
    with pytest.raises(trellis.TrellisError, match=r"Unknown key 'model\.stats' of the family hmm; did you mean"):
        trellis.train(SENTENCES, stats=3)
    with pytest.raises(trellis.TrellisError, match="contain no words"):
        trellis.train([])


def test_seeds_repeat() -> None:
    one, same, other = (
        trellis.train(SENTENCES, states=3, epochs=1, seed=seed, device="cpu").scores["valid"] for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_evaluate_takes_models_paths_and_texts(nowhere: Path) -> None:
    trained = trellis.train(SENTENCES, family="bigram", run=nowhere / "run", device="cpu")
    (nowhere / "text.txt").write_text("the cat runs\na dog sees\n")
    asked = [
        trellis.evaluate(model, data)
        for model in (trained.model, nowhere / "run", str(nowhere / "run"))
        for data in (
            ["the cat runs", "a dog sees"],
            [["the", "cat", "runs"], ["a", "dog", "sees"]],
            nowhere / "text.txt",
        )
    ]
    by_hand = sum(map(trained.model.log_prob, ["the cat runs", "a dog sees"]))
    assert [result.log_likelihood for result in asked] == pytest.approx([by_hand] * len(asked), rel=1e-6)
    assert {result.tokens for result in asked} == {8}
    with pytest.raises(trellis.TrellisError, match="choose one"):
        trellis.evaluate(trained.model)
    with pytest.raises(trellis.TrellisError, match="no perplexity"):
        trellis.evaluate(trellis.train(SENTENCES, family="lds", **SMALL["lds"]).model, SENTENCES)


@pytest.mark.parametrize("family", ["crf", "hmm-tagger"])
def test_taggers_are_evaluated_by_their_tags(family: str, nowhere: Path) -> None:
    file = nowhere / "text.conll"
    file.write_text("\n\n".join("\n".join(f"{word} {tag}" for word, tag in row) for row in TAGGED) + "\n")
    trained = trellis.train(file, family=family, run=nowhere / "run", device="cpu", **SMALL[family])
    assert trellis.evaluate(trained.model).accuracy == pytest.approx(trained.scores["test_accuracy"] / 100)
    found = [trellis.evaluate(nowhere / "run", data).accuracy for data in (TAGGED, file, str(file))]
    assert len(set(found)) == 1
    wrong = [[(word, "X") for word, _ in row] for row in TAGGED]
    assert trellis.evaluate(trained.model, wrong).accuracy == 0.0


def test_evaluate_reads_the_test_split_of_the_models_own_corpus(nowhere: Path) -> None:
    (nowhere / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    trained = trellis.train(nowhere / "text.txt", states=3, epochs=1, device="cpu")
    assert trellis.evaluate(trained.model).perplexity == pytest.approx(trained.scores["test"])
    assert trellis.evaluate(trained.model, split="valid").perplexity == pytest.approx(trained.scores["valid"])


def test_read_corpus(nowhere: Path) -> None:
    (nowhere / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    for data in (SENTENCES, TOKENS, nowhere / "text.txt", str(nowhere / "text.txt")):
        corpus = trellis.read_corpus(data, lower=True)
        assert isinstance(corpus, Corpus)
        assert set(corpus.splits) == {"train", "valid", "test"}
        assert set(corpus.vocab.words) == {word for row in TOKENS for word in row} | {"<eos>", "<unk>"}
    assert sum(split.tokens.size for split in trellis.read_corpus(TOKENS).splits.values()) == sum(
        len(row) + 1 for row in TOKENS
    )
    odd = trellis.read_corpus([["New York", "sleeps"]] * 20)
    assert "New York" in odd.vocab.words
    with pytest.raises(trellis.TrellisError, match=r"Unknown key 'data\.lowr'"):
        trellis.read_corpus(SENTENCES, lowr=True)


def test_load_checks_the_kind_that_is_asked_for(nowhere: Path) -> None:
    trellis.train(SENTENCES, family="bigram", run=nowhere / "run")
    assert trellis.load(nowhere / "run", trellis.NGram).order == 2
    assert isinstance(trellis.load(nowhere / "run", LanguageModel), trellis.NGram)
    with pytest.raises(trellis.TrellisError, match="of the family ngram, not a model of the family hmm"):
        trellis.load(nowhere / "run", trellis.HMM)


def test_a_model_is_saved_from_python(nowhere: Path) -> None:
    model = trellis.train(SENTENCES, states=3, epochs=1, device="cpu").model
    model.save("folder")
    model.save(nowhere / "model.safetensors")
    for path in ("folder", "model.safetensors"):
        assert trellis.load(path).log_prob("the cat") == model.log_prob("the cat")


def test_a_text_from_python_cannot_be_resumed_from_the_command_line(nowhere: Path) -> None:
    trellis.train(SENTENCES, run="run", states=3, epochs=1, device="cpu")
    assert run("train", "--run", "run", "--resume") == 2
    more = trellis.train(SENTENCES, run="run", resume=True, states=3, epochs=2, device="cpu")
    assert more.training["epoch"] == 2


def test_a_toml_file_is_a_run(nowhere: Path) -> None:
    (nowhere / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    (nowhere / "run.toml").write_text('[data]\nsource = "text.txt"\n[model]\nfamily = "bigram"\n')
    assert trellis.train("run.toml").model.family == "ngram"


def test_few_sentences() -> None:
    assert trellis.train(TAGGED[:4], family="crf", iterations=5).scores is not None
    with pytest.raises(trellis.TrellisError, match="no valid split"):
        trellis.train(TAGGED[:4], family="hmm-tagger")
    with pytest.raises(trellis.TrellisError, match=r"set data\.source to a file or to one of conll2000"):
        trellis.train(trellis.RunConfig(model=CRFTaggerConfig()))


class Heard(trellis.Callback):
    """Remembers what it was called with."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.lines: list[dict[str, Any]] = []

    def on_step(self, state: Any) -> None:
        self.steps.append(state.step)

    def on_evaluation(self, state: Any, metrics: Any) -> None:
        self.lines.append(dict(metrics))


@pytest.mark.parametrize("family", ["hmm", "lds"])
def test_callbacks(family: str) -> None:
    heard = Heard()
    trained = trellis.train(SENTENCES, family=family, device="cpu", callbacks=[heard], **SMALL[family])
    assert heard.lines == [line for line in trained.history if line.get("valid_ppl") or line.get("valid_nats")]
    if family == "hmm":
        assert heard.steps == list(range(1, trained.training["step"] + 1))


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained = trellis.train(
        SENTENCES, states=3, epochs=2, device="cpu", callbacks=[trellis.TensorBoard(tmp_path / "events")]
    )
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    valid = [line["valid_ppl"] for line in trained.history]
    assert [event.value for event in events.Scalars("valid_ppl")] == pytest.approx(valid, rel=1e-6)


def test_every_public_name_is_listed_documented_and_exemplified() -> None:
    assert set(dir(trellis)) >= set(trellis.__all__)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for name in trellis.__all__:
        thing = getattr(trellis, name)
        assert (thing.__doc__ or "").strip(), name
        tests = finder.find(thing, name, globs={"trellis": trellis, "np": np})
        assert any(test.examples for test in tests if test.name == name), f"{name} has no example"
        for test in tests:
            assert runner.run(test).failed == 0, test.name


def test_names_are_imported_when_first_used() -> None:
    code = "import sys, trellis; assert 'torch' not in sys.modules; trellis.TrellisError; dir(trellis); "
    code += "assert 'torch' not in sys.modules; trellis.HMM; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trellis.nothing  # noqa: B018


def test_models_show_themselves() -> None:
    trained = trellis.train(SENTENCES, states=3, epochs=1, device="cpu")
    model = trained.model
    assert repr(trained).startswith(f"Trained(model={model!r}, scores=Scores(title='perplexity', values={{'parameters'")
    assert len(repr(trained)) < 300
    assert repr(model.draw("the cat")).startswith("<Trellis: 3 words, ")  # type: ignore[attr-defined]
    assert repr(model) == "<HMM (hmm): 3 states, 9 words, trained on 60 sentences>"
    assert "<th>states</th><td>3</td>" in model._repr_html_()
    assert "<th>parameters</th><td>201,312</td>" in trellis.load("demo")._repr_html_()
    model.about = {"corpus": "<b>"}
    assert "&lt;b&gt;" in model._repr_html_()
    assert repr(pickle.loads(pickle.dumps(model))) == repr(model)


TYPES = """
import trellis

reveal_type(trellis.load("demo"))
reveal_type(trellis.load("demo", trellis.HMM))
reveal_type(trellis.load("demo", kind=trellis.NGram, device="auto"))
reveal_type(trellis.load("demo").sample(3))
reveal_type(trellis.load("demo").draw("a list"))
trellis.load("demo").nothing
"""


def test_type_checkers_know_what_load_returns(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api", reason="mypy is missing")
    (tmp_path / "user.py").write_text(TYPES)
    root = Path(trellis.__file__).parents[2]
    config = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    out, _, code = mypy.run([*config, str(tmp_path / "user.py")])
    assert re.findall(r'type is "([\w.\[\]]+)"', out) == [
        "trellis.models.base.PersistedModel",
        "trellis.families.hmm.model.HMM",
        "trellis.families.ngram.model.NGram",
        "list[str]",
        "trellis.models.base.Picture",
    ]
    assert code == 1
    assert '"PersistedModel" has no attribute "nothing"' in out


def test_misuse_is_one_sentence(nowhere: Path) -> None:
    tagger = trellis.train(TAGGED, family="crf", iterations=2).model
    with pytest.raises(trellis.TrellisError, match="each split into words"):
        tagger.tag("the cat")
    with pytest.raises(trellis.TrellisError, match="pass tagged text"):
        trellis.evaluate(tagger)
    with pytest.raises(trellis.TrellisError, match="neither a string nor an integer"):
        trellis.train(TAGGED, states=2)
    with pytest.raises(trellis.TrellisError, match="change them there"):
        trellis.train(RunConfig(), epochs=3)
    trellis.train(SENTENCES, run="run", states=3, epochs=1, device="cpu")
    with pytest.raises(trellis.TrellisError, match=r"was trained with data\.source"):
        trellis.train(SENTENCES[1:], run="run", resume=True, states=3, epochs=1, device="cpu")
