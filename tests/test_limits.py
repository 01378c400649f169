"""Absurd numbers end in one sentence: from the command line, from TOML, from Python, and in files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from running import SENTENCES, run
from trellis import devices
from trellis.config import load_config, run_config
from trellis.corpus.brown_paths import read_paths
from trellis.errors import TrellisError, limit_reached, within_limits
from trellis.families.crf.encoders import WordVectors
from trellis.storage import load_tensors, read_metadata, save_tensors

HUGE = [str(2**63 - 1), str(2**63), "9" * 400, "9" * 5000]
TEXT = SENTENCES * 8
SMALL: dict[str, Any] = {"states": 2, "epochs": 2, "tokenizer": "whitespace", "min_count": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "text.txt").write_text("\n".join(TEXT) + "\n")
    trellis.train(TEXT, **SMALL).model.save(folder / "model")
    return folder


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of standard error; there is no traceback."""
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize(
    "option", ["model.states", "model.dim", "model.band", "batches.lanes", "train.lr", "seed", "data.max_size"]
)
def test_options(folder: Path, option: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    if (option, number) in (("data.max_size", HUGE[0]), ("seed", HUGE[0])):
        pytest.skip("a valid value")
    more = ["--set", "model.params=lowrank"] if option == "model.band" else []
    given = ["--set", f"{option}={number}", *more, "--run", folder / "run"]
    assert run("train", "--data", folder / "text.txt", *given) == 2
    found = sentence(capsys)
    assert option in found
    assert len(found) < 300
    assert not (folder / "run").exists()


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("sample", "-n"),
        ("sample", "--max-tokens"),
        ("sample", "--seed"),
        ("infill", "--samples"),
        ("generate", "--words"),
    ],
)
def test_arguments(folder: Path, command: str, option: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    if (option, number) == ("--seed", HUGE[0]):
        pytest.skip("a valid value")
    text = ["the ___"] if command == "infill" else []
    assert run(command, folder / "model", *text, option, number) == 2
    assert option in sentence(capsys)


@pytest.mark.parametrize("value", ["[" * 20_000, "{a=" * 5_000])
def test_deep_nesting(tmp_path: Path, value: str) -> None:
    (tmp_path / "run.toml").write_text(f"x = {value}")
    with pytest.raises(TrellisError, match=r"run\.toml: "):
        load_config(tmp_path / "run.toml")
    with pytest.raises(TrellisError, match=r"model\.states must be an integer or auto, not '"):
        run_config({}, [f"model.states={value}"])


def test_a_run_that_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "total_memory", lambda device="cpu": 8 * 10**9)
    with pytest.raises(
        TrellisError, match=r"hmm needs at least 10\.8 GB of memory; the machine has 8 GB: use a smaller"
    ):
        trellis.train(TEXT, **SMALL | {"states": 30_000})
    sizes: dict[str, dict[str, Any]] = {
        "lstm": {"dim": 20_000},
        "rnn": {"dim": 50_000},
        "feedforward": {"dim": 20_000},
        "fhmm": {"states": 30_000},
        "lds": {"dim": 30_000},
    }
    for family, options in sizes.items():
        with pytest.raises(TrellisError, match=f"Training this {family} needs at least"):
            trellis.train(TEXT, family=family, tokenizer="whitespace", device="cpu", **options)


def test_a_run_that_cannot_fit_with_any_number_of_states() -> None:
    with pytest.raises(TrellisError, match="Training this hmm needs at least"):
        trellis.train(TEXT, tokenizer="whitespace", device="cpu", params="neural", dim=10**9)


@pytest.mark.parametrize("family", ["hmm", "lstm", "rnn", "feedforward", "fhmm", "lds"])
@pytest.mark.parametrize("size", [2, 7])
def test_the_estimate_is_a_lower_bound(family: str, size: int) -> None:
    """No model has fewer parameters than the estimate, so that no run is refused that would fit."""
    named = {"hmm": "states", "fhmm": "states"}.get(family, "dim")
    options = {named: size, "device": "cpu", "tokenizer": "whitespace", "epochs": 1}
    model: Any = trellis.train(TEXT, family=family, **options).model
    config = run_config({"model": {"family": family, named: size}}).model
    assert 0 < config.num_values(len(model.vocab)) <= model.num_parameters()


@pytest.mark.parametrize("params", ["table", "neural", "lowrank", "lowrank-table"])
@pytest.mark.parametrize("emission", ["full", "brown", "uniform"])
def test_the_estimate_of_parameterisations(params: str, emission: str) -> None:
    options = {"params": params, "emission": emission, "states": 6, "dim": 4, "features": 3, "classes": 3}
    options |= {"states_per_word": 2}
    model: Any = trellis.train(TEXT, epochs=1, tokenizer="whitespace", device="cpu", **options).model
    config = run_config({"model": {"family": "hmm", **options}}).model
    computed = len(model.vocab) * config.values_per_token(0)  # the table of emissions, a result of the nets
    most = model.num_parameters() + (computed if params in ("neural", "lowrank") else 0)
    assert 0 < config.num_values(len(model.vocab)) <= most


@pytest.mark.parametrize("name", ["n", "max_tokens", "seed"])
@pytest.mark.parametrize("value", [-1, 2**64, 10**400, 1.5, "3", None, True])
def test_queries_from_python(folder: Path, name: str, value: Any) -> None:
    with pytest.raises(TrellisError, match="pass an integer"):
        trellis.load(folder / "model").sample(**{name: value})


def test_samples_that_cannot_fit(folder: Path) -> None:
    model = trellis.load(folder / "model")
    with pytest.raises(
        TrellisError, match=r"Sampling 1,000,000,000,000 sentences of at most 100 tokens needs at least"
    ):
        model.sample(10**12)
    with pytest.raises(
        TrellisError, match="The number of samples is 4611686018427387904; pass an integer from 1 to 1,0"
    ):
        model.infill("the ___", samples=2**62)
    with pytest.raises(TrellisError, match="The largest number of words is 4611686018427387904"):
        model.constrain(trellis.constraints.contains("cat"), most=2**62)


@pytest.mark.parametrize("count", HUGE[2:])
def test_numbers_in_files(tmp_path: Path, count: str) -> None:
    (tmp_path / "paths").write_text(f"01\ta\t{count}\n")
    with pytest.raises(TrellisError, match=r"line 1: the count '9+.* must be an integer of at most 18 digits"):
        read_paths(tmp_path / "paths")
    (tmp_path / "x.vec").write_text(f"{count} 2\n")
    with pytest.raises(TrellisError, match="line 1: expected the number of words"):
        WordVectors(tmp_path / "x.vec")
    (tmp_path / "x.arpa").write_text(f"\\data\\\nngram 1={count}\n")
    with pytest.raises(TrellisError, match="line 2: expected 'ngram 1=NUMBER'"):
        trellis.load(tmp_path / "x.arpa")


@pytest.mark.parametrize("key", ["threads", "learner", "batches", "state"])
def test_a_checkpoint_without_a_key(tmp_path: Path, key: str) -> None:
    import json

    class Stop(trellis.Callback):
        def on_evaluation(self, state: Any, metrics: Any) -> None:
            if state.epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trellis.train(TEXT, tmp_path, callbacks=[Stop()], **SMALL | {"epochs": 3})
    file = tmp_path / "last.safetensors"
    header = read_metadata(file)
    details = json.loads(header["training"])
    del details[key]
    save_tensors(file, load_tensors(file), header | {"training": json.dumps(details)})
    with pytest.raises(TrellisError, match=rf"last\.safetensors is damaged: .*{key}"):
        trellis.train(TEXT, tmp_path, resume=True, **SMALL | {"epochs": 3})


def test_a_text_of_one_word(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word\n")
    with pytest.raises(TrellisError, match="no words in the train split: pass a longer text"):
        trellis.train(tmp_path / "one.txt", **SMALL)


def test_limits_of_the_interpreter() -> None:
    assert "nested too deeply" in limit_reached(RecursionError("x"))
    assert "too large" in limit_reached(OverflowError("int too large to convert to float"))
    assert "not enough memory" in limit_reached(MemoryError())
    assert limit_reached(ValueError("something else")) == ""
    with pytest.raises(TrellisError, match="There is not enough memory"), within_limits():
        np.zeros(2**62)
    with pytest.raises(ValueError, match="math domain error"), within_limits():
        math.sqrt(-1)


def test_memory_of_the_machine() -> None:
    assert 10**8 < devices.total_memory() < 10**15
