"""`trellis eval`: figures, comparisons and mixtures of models."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

import trellis
from running import answer, run


def test_eval_gives_the_figure_of_the_training(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = json.loads((model / "results.json").read_text())["scores"]["rows"][-1]
    (row,) = answer(capsys, "eval", model)
    assert row["perplexity"] == pytest.approx(trained["test"])
    (row,) = answer(capsys, "eval", model, "--split", "train")
    assert row["perplexity"] == pytest.approx(trained["train"])


def test_eval_of_another_text_in_the_models_words(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("the dog sees\nthe zebra runs\n" * 20)
    (row,) = answer(capsys, "eval", model, "--data", other)
    by_hand = trellis.load(model).log_prob(other.read_text())
    assert row["log_likelihood"] == pytest.approx(by_hand, rel=1e-5)
    assert row["tokens"] == 160


def test_eval_compares_interpolates_and_draws(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "--model", "bigram", "--data", text, "--run", tmp_path / "bigram", "--quiet") == 0
    capsys.readouterr()
    common = ["eval", model, tmp_path / "bigram", "--interpolate", "--plot", tmp_path / "x.svg"]
    first, second, mixed = answer(capsys, *common, "--split", "valid")
    assert [row["order"] for row in (first, second, mixed)] == ["sentences", "streams", "mixed"]
    assert mixed["perplexity"] <= min(first["perplexity"], second["perplexity"]) * (1 + 1e-9)
    assert sum(mixed["weights"]) == pytest.approx(1)
    difference = second["against_first"]["perplexity"]
    assert difference["difference"] == pytest.approx(second["perplexity"] - first["perplexity"])
    assert difference["low"] <= difference["difference"] <= difference["high"]
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    assert run(*common) == 0
    assert "paired bootstrap" in capsys.readouterr().out


def test_eval_leaves_the_test_split_alone(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = json.loads((model / "results.json").read_text())["scores"]["rows"][-1]
    (row,) = answer(capsys, "eval", model, "--no-test")
    assert row["perplexity"] == pytest.approx(trained["valid"])
    assert run("eval", model, "--no-test", "--split", "test") == 2
    assert "--no-test and --split test contradict each other" in capsys.readouterr().err


def test_eval_mixes_in_an_ngram_model_of_the_training_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone, ngram, mixed = answer(capsys, "eval", model, "--ngram", "3", "--interpolate", "--open", "--no-test")
    assert ngram["model"] == "3-gram of the training text"
    assert mixed["family"] == "interpolated"
    assert mixed["perplexity"] <= min(alone["perplexity"], ngram["perplexity"]) * (1 + 1e-9)
    for row in (alone, ngram, mixed):
        assert row["bits_per_character"] == pytest.approx(
            -row["log_likelihood"] / math.log(2) / row["characters"], rel=1e-9
        )
        assert row["open_bits_per_character"] >= row["bits_per_character"]


def test_eval_prints_what_the_cache_and_dynamic_evaluation_chose(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("eval", model, "--cache", "--dynamic", "--no-test") == 0
    shown = capsys.readouterr().out
    assert re.search(r"\d\.\d{3} cache", shown)
    assert re.search(r"B: gradient steps with rate \S+ and decay \S+\.", shown)
    assert re.search(r"C: the weight of a word in the cache decays by 0\.\d+ per token\.", shown)
