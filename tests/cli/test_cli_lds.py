"""A linear dynamical system on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from lds_oracle import markov_text
from running import parsed, run
from trellis.config import TrainConfig, load_config
from trellis.families.lds.config import LDSTrainConfig
from trellis.families.neural.config import RNNConfig
from trellis.storage import load_tensors
from trellis.training.metrics import MetricsFile
from trellis.training.run import train

SMALL = ["model.dim=3", "model.blocks=3", "model.noise_prior=5", "train.epochs=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run."""
    place = tmp_path_factory.mktemp("lds")
    words = np.array(list("abcdefghijkl"))[markov_text(words=12)]
    (place / "text.txt").write_text("\n".join(" ".join(line) for line in words.reshape(-1, 20)) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRELLIS_CACHE", str(place / "cache"))
        settings = [word for setting in SMALL for word in ("--set", setting)]
        arguments = ["--model", "lds", "--data", place / "text.txt", "--run", place / "run", *settings, "--quiet"]
        assert run("train", *arguments) == 0
    return place / "run"


def answer(capsys: pytest.CaptureFixture[str], *words: object):
    assert run(*words, "--json") == 0
    return parsed(capsys.readouterr().out, *words)


def test_training_measures_densities_and_never_perplexity(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    rows = results["scores"]["rows"]
    assert [row["split"] for row in rows] == ["train", "valid", "test"]
    assert all(row["gain"] > 0 for row in rows)
    assert "perplexity" not in json.dumps(results)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[-1]["train_nats"] > lines[0]["train_nats"]


def test_a_training_that_was_killed_goes_on_to_the_same_bits(folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(folder.parent / "cache"))
    config = replace(load_config(folder / "config.toml"), train=LDSTrainConfig(epochs=4, checkpoint_seconds=1e-9))
    appended = MetricsFile.append

    def killed(file: MetricsFile, **figures: float) -> dict[str, Any]:
        if figures["step"] == 2:
            raise KeyboardInterrupt
        return appended(file, **figures)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsFile, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    assert train(config, tmp_path / "run", resume=True).scores is not None
    one, other = (load_tensors(place / "model.safetensors") for place in (folder, tmp_path / "run"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    lines = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [0, 1, 2, 3, 4]


def test_a_network_trains_the_system_that_it_starts_from(folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(folder.parent / "cache"))
    lds = load_config(folder / "config.toml")
    network = RNNConfig(init_from=str(folder / "config.toml"))
    config = replace(lds, model=network, train=TrainConfig(learner="gradient", epochs=1, lr=1e-3))
    trained = train(config, tmp_path / "run")
    assert (tmp_path / "run" / "start" / "model.safetensors").exists()
    assert trained.scores is not None
    assert trained.scores["valid"] < 2 * min(row["valid"] for row in trained.scores.rows)


@pytest.mark.parametrize("what", ["smoothed", "filtered", "type"])
def test_embed_in_every_format(folder: Path, tmp_path: Path, capsys, what: str) -> None:
    rows = answer(capsys, "embed", folder, "a b c", "d a", "--what", what)
    vectors = np.array([row["vector"] for row in rows])
    assert [row["token"] for row in rows] == list("abcda")
    for name in ("x.npy", "x.txt", "x.safetensors"):
        facts = answer(capsys, "embed", folder, "a b c", "d a", "--what", what, "-o", tmp_path / name)
        assert (facts["tokens"], facts["dimensions"]) == (5, 3)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), vectors, atol=1e-6)
    np.testing.assert_allclose(load_tensors(tmp_path / "x.safetensors")["vectors"].numpy(), vectors, atol=1e-6)
    first, *lines = (tmp_path / "x.txt").read_text().splitlines()
    assert first == "5 3"
    assert [line.split()[0] for line in lines] == list("abcda")
    np.testing.assert_allclose(np.array([line.split()[1:] for line in lines], float), vectors, atol=1e-5)


def test_neighbours_and_dynamics(folder: Path, capsys) -> None:
    rows = answer(capsys, "neighbours", folder, "a b c", "--word", "b", "-n", 3)
    assert len(rows) == 3
    assert rows[0]["cosine"] >= rows[1]["cosine"]
    pairs = answer(capsys, "dynamics", folder, "-n", 2, "--words", 4)
    assert [len(pair["from"].split()) for pair in pairs] == [4, 4]
    picture = folder / "dynamics.svg"
    assert run("dynamics", folder, "-n", 2, "--plot", picture, "--quiet") == 0
    texts = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == 6
    assert {pair["from"].split()[0] for pair in pairs} == {texts[0].split()[0], texts[3].split()[0]}
    assert run("dynamics", folder) == run("info", folder) == run("embed", folder, "a b") == 0


def test_a_recurrent_network_starts_from_it(folder: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(folder.parent / "cache"))
    arguments = ["--model", "rnn", "--data", folder.parent / "text.txt", "--run", tmp_path / "rnn", "--quiet"]
    settings = ["train.learner=gradient", "train.max_steps=1", f"model.init_from={folder}", "train.lr=0.0001"]
    assert run("train", *arguments, *(word for setting in settings for word in ("--set", setting))) == 0
    capsys.readouterr()
    assert answer(capsys, "info", tmp_path / "rnn")["dim"] == 4
    assert run("train", *arguments[:5], tmp_path / "no", "--quiet", "--set", f"model.init_from={tmp_path / 'rnn'}") == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["score", "RUN", "a b"], "no probabilities"),
        (["sample", "RUN"], "no probabilities"),
        (["embed", "RUN", "a b", "--what", "viterbi"], "no 'viterbi' features; it has smoothed"),
        (["embed", "RUN", "a b", "-o", "x.doc"], "unsupported suffix"),
        (["neighbours", "RUN", "a b", "--word", "c"], "not in the text"),
        (["dynamics", "RUN", "--plot", "x.png"], "ends in .svg"),
    ],
)
def test_what_it_cannot_do_is_told_in_one_sentence(folder: Path, capsys, words: list[str], told: str) -> None:
    assert run(*(folder if word == "RUN" else word for word in words)) == 2
    message = capsys.readouterr().err.strip()
    assert told in message
    assert len(message.splitlines()) == 1
