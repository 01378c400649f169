"""Commands as a user meets them: their tables, their JSON and their help."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import trellis
from running import SMALL, answer, run
from trellis.cli.main import find_commands


def test_score_and_its_tokens(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeffthe cat sees\r\na dog\n".encode())))
    rows = answer(capsys, "score", model, "--tokens")
    loaded = trellis.load(model)
    for row, line in zip(rows, ["the cat sees", "a dog"], strict=True):
        assert row["log_prob"] == pytest.approx(loaded.log_prob(line), abs=1e-5)
        assert sum(log_prob for _, log_prob in row["tokens"]) == pytest.approx(row["log_prob"], abs=1e-5)


def test_infill_sample_states_info(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (filled,) = answer(capsys, "infill", model, "the ___ runs", "-n", "50")
    assert sum(p for _, p in filled["gaps"][0]) == pytest.approx(1.0, abs=1e-4)
    assert len(answer(capsys, "sample", model, "-n", "3")) == 3
    assert answer(capsys, "sample", model) == answer(capsys, "sample", model)
    rows = answer(capsys, "states", model, "-n", "4")
    assert sum(row["occupancy"] for row in rows) == pytest.approx(1.0, abs=1e-4)
    assert answer(capsys, "info", model)["states"] == 4


def test_only_possible_words_are_shown(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloned = [
        "model.states=10",
        "model.emission=cloned",
        "model.params=neural",
        "model.dim=8",
        "train.learner=gradient",
    ]
    settings = [word for one in [*cloned, "train.epochs=1"] for word in ("--set", one)]
    assert run("train", "--data", text, "--run", tmp_path / "run", "--quiet", *settings) == 0
    capsys.readouterr()
    assert all(len(row["words"]) == 1 for row in answer(capsys, "states", tmp_path / "run"))


def test_embed_writes_posteriors(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "embed", model, "the cat", "a dog runs", "-o", tmp_path / "x.npy")
    table = np.load(tmp_path / "x.npy")
    assert table.shape == (5, 4)
    np.testing.assert_allclose(table.sum(1), 1, atol=1e-5)
    rows = answer(capsys, "embed", model, "the cat", "--what", "viterbi")
    assert [row["probability"] for row in rows] == [1.0, 1.0]


def test_export_to_arrays(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "export", model, "-o", tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as arrays:
        for name in ("startprob", "transmat", "emissionprob"):
            np.testing.assert_allclose(arrays[name].sum(-1), 1, atol=1e-12)


def test_export_to_hmmlearn(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hmmlearn", reason="hmmlearn is not installed")
    answer(capsys, "export", model, "-o", tmp_path / "m.pkl")
    other = pickle.loads((tmp_path / "m.pkl").read_bytes())
    loaded = trellis.load(model)
    ids = loaded.encode_line("the cat sees", eos=True)[0].numpy()
    assert other.score(ids[:, None]) == pytest.approx(loaded.log_prob("the cat sees"), abs=1e-4)


def test_cache_shows_and_clears(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(answer(capsys, "cache")) == 1
    assert len(answer(capsys, "cache", "--clear")) == 1
    assert answer(capsys, "cache") == []


def test_cluster_writes_and_shows_paths(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = answer(capsys, "cluster", text, "-c", "3", "-o", tmp_path / "p.txt", "--alone", "dog")
    assert (facts["words"], facts["classes"]) == (9, 3)
    shown = answer(capsys, "cluster", "--show", tmp_path / "p.txt")["paths"]
    assert ["dog"] in shown.values()
    assert sum(map(len, shown.values())) == 9
    assert answer(capsys, "cluster", text, "--cloned")["classes"] == 9
    assert run("cluster", "--show", tmp_path / "p.txt") == 0
    assert "dog" in capsys.readouterr().out


def test_people_get_tables(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["states", model], ["info", model], ["eval", model], ["sample", model], ["cache"]):
        assert run(*words) == 0
        assert capsys.readouterr().out.strip()


def test_impossible_text_is_valid_json(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, hard = tmp_path / "hard", ["--set", "train.pseudocount=0"]
    assert run("train", "--data", text, "--run", folder, "--quiet", *SMALL, *hard) == 0
    capsys.readouterr()
    (row,) = answer(capsys, "score", folder, "zebra")
    assert row["log_prob"] is row["perplexity"] is None
    assert run("infill", folder, "zebra ___") == 2
    assert "probability zero" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["unigram", "bigram", "ngram"])
def test_models_without_states_answer_or_say_why_not(
    family: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / family
    assert run("train", "--model", family, "--data", text, "--run", folder, "--quiet") == 0
    assert run("sample", folder) == run("score", folder, "the cat") == run("info", folder) == run("eval", folder) == 0
    capsys.readouterr()
    for command in (["infill", folder, "a ___"], ["embed", folder, "a"], ["states", folder]):
        assert run(*command) == 2
        assert "no hidden states" in capsys.readouterr().err


def test_an_n_gram_model_as_arpa_and_back(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "run", tmp_path / "m.arpa"
    assert run("train", "--model", "ngram", "--set", "model.order=3", "--data", text, "--run", folder, "--quiet") == 0
    capsys.readouterr()
    rows = json.loads((folder / "results.json").read_text())["scores"]["rows"]
    assert [row["model"] for row in rows] == ["unigram", "bigram", "5-gram", "3-gram"]
    answer(capsys, "export", folder, "-o", file)
    ours, arpa = answer(capsys, "eval", folder, file, "--data", text, "--split", "all")
    assert arpa["perplexity"] == pytest.approx(ours["perplexity"])
    assert arpa["family"] == "3-gram"
    facts = answer(capsys, "info", file)
    assert facts["family"] == "ngram"
    assert len(facts["ngrams"]) == 3


@pytest.mark.parametrize("command", find_commands())
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert f"example: trellis {command}" in capsys.readouterr().out.replace("\n", " ")


def test_states_can_be_measured(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = answer(capsys, "states", model, "--measures", "--split", "valid")
    assert 0 < facts["occupancy"] <= 1
    assert 1 <= facts["effective_states"] <= 4
    assert run("states", model, "--measures") == 0
    assert "visited_transition_entropy" in capsys.readouterr().out


def test_a_text_of_unknown_words_is_noted(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run("score", model, "zyx qwv vwx") == 0
    assert "3 of 3 words are unknown to the model" in caplog.text
