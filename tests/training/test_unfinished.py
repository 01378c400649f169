"""Runs that were interrupted can be queried: the best checkpoint so far is loaded, and a warning names it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from trellis.cli.main import main
from trellis.models.files import BEST, FILE, LAST, UNTRAINED
from trellis.storage import load_tensors, read_metadata, save_tensors
from trellis.training.checkpoint import load_weights

TEXT = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs"] * 10
OPTIONS = {"tokenizer": "whitespace", "device": "cpu"}
FAMILIES: dict[str, dict[str, Any]] = {
    "hmm": {"states": 4},
    "fhmm": {"layers": 2, "states": 2},
    "lstm": {"dim": 8},
    "feedforward": {"dim": 8, "hidden": 8},
    "rnn": {"dim": 8},
}


class PowerCutError(Exception):
    """Ends a run in the middle."""


class Stop(trellis.Callback):
    """Raises in the step after `step`."""

    def __init__(self, step: int) -> None:
        self.last = step

    def on_step(self, state: Any) -> None:
        if state.step > self.last:
            raise PowerCutError


def interrupted(run: Path, step: int, family: str = "hmm", **settings: Any) -> Path:
    """A run of one step per epoch that ends after some steps, each followed by an evaluation."""
    with pytest.raises(PowerCutError):
        trellis.train(
            TEXT, family=family, run=run, epochs=5, callbacks=[Stop(step)], max_steps=9, **OPTIONS, **settings
        )
    assert not (run / FILE).exists()
    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_the_best_checkpoint_is_loaded(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = interrupted(tmp_path, 2, family, **FAMILIES[family])
    model = trellis.load(run)
    best = load_weights(run / BEST)
    assert all(value.equal(best[name]) for name, value in model.state_dict().items())
    assert f"{run} is unfinished: this is its best checkpoint so far (epoch " in caplog.text
    assert np.isfinite(model.log_prob("the dog runs"))
    assert trellis.evaluate(run, TEXT).perplexity < 1.1 * len(model.vocab)


def test_before_the_first_evaluation_the_last_checkpoint_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = interrupted(tmp_path, 2, states=4, eval_every=100, checkpoint_steps=1)
    assert (run / LAST).exists()
    assert trellis.load(run).num_states == 4
    assert "its last checkpoint so far (epoch " in caplog.text


def test_without_a_checkpoint_one_sentence(tmp_path: Path) -> None:
    run = interrupted(tmp_path, 0, states=4)
    with pytest.raises(trellis.TrellisError, match=r"is unfinished and has no checkpoint yet; resume it with 'trellis"):
        trellis.load(run)


def test_a_finished_run_keeps_no_untrained_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = interrupted(tmp_path, 2, states=4)
    assert (run / UNTRAINED).exists()
    trained = trellis.train(TEXT, run=run, resume=True, epochs=5, max_steps=9, states=4, **OPTIONS)
    assert not (run / UNTRAINED).exists()
    caplog.clear()
    assert trellis.load(run).log_prob("a dog") == trained.model.log_prob("a dog")
    assert not caplog.text


def test_checkpoints_that_are_models(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trellis.train(TEXT, family="lds", run=tmp_path, epochs=2, dim=2, blocks=2, tokenizer="whitespace")
    (tmp_path / FILE).rename(tmp_path / BEST)
    assert trellis.load(tmp_path).family == "lds"
    assert "is unfinished" in caplog.text


def test_commands_take_an_unfinished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = interrupted(tmp_path, 2, states=4)
    with pytest.raises(SystemExit) as ended:
        main(["score", str(run), "the dog runs", "--json"])
    assert ended.value.code == 0
    assert "log_prob" in capsys.readouterr().out


@pytest.mark.parametrize("change", [lambda t: t * np.nan, lambda t: t.flatten()[:1]])
def test_a_checkpoint_whose_weights_do_not_fit(tmp_path: Path, change: Any) -> None:
    run = interrupted(tmp_path, 2, states=4)
    tensors, metadata = load_tensors(run / BEST), read_metadata(run / BEST)
    changed = {name: change(value) if name.startswith("model.") else value for name, value in tensors.items()}
    save_tensors(run / BEST, changed, metadata)
    with pytest.raises(trellis.TrellisError, match=r"best.safetensors is damaged"):
        trellis.load(run)
