"""Factorial HMMs by the same commands as any model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import trellis
from running import run
from trellis.families.factorial.model import FHMM

SMALL = ["--model", "fhmm", "--states", "3", "--set", "model.layers=2", "--set", "batches.order=sentences",
         "--set", "batches.tokens=64", "--set", "train.lr=0.05", "--set", "train.epochs=6"]  # fmt: skip


def test_train_embed_eval_sample(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run("train", "--data", text, "--run", folder, "--json", "--quiet", *SMALL) == 0
    row = json.loads(capsys.readouterr().out)["scores"]["rows"][-1]
    assert (row["model"], row["states"]) == ("fhmm-2-3", 9)
    assert 1 < row["valid"] < 12
    assert isinstance(trellis.load(folder), FHMM)
    for what, width in (("posterior", 6), ("viterbi", 6), ("filtered", 6)):
        assert run("embed", folder, "the cat sees", "--what", what, "-o", tmp_path / "x.npy", "--quiet") == 0
        features = np.load(tmp_path / "x.npy")
        assert features.shape == (3, width)
        np.testing.assert_allclose(features.sum(-1), 2, atol=1e-5)
    assert run("eval", folder, "--data", text) == 0
    assert run("sample", folder, "-n", "2") == 0
    capsys.readouterr()
    assert run("embed", folder, "the cat", "--json") == 0
    assert [json.loads(line)["layer"] for line in capsys.readouterr().out.splitlines()] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--set", "batches.order=streams"], "whole sentences"),
        (["--states", "2000"], "joint states"),
        (["--set", "model.bound=loose"], "model.bound"),
        (["--set", "train.learner=magic"], "train.learner"),
    ],
)
def test_what_cannot_be(more: list[str], says: str, text: Path, tmp_path: Path, capsys) -> None:
    assert run("train", "--data", text, "--run", tmp_path / "run", *SMALL, *more) == 2
    assert says in capsys.readouterr().err


def test_commands_for_hmms_say_so(text: Path, tmp_path: Path, capsys) -> None:
    run("train", "--data", text, "--run", tmp_path / "run", "--quiet", *SMALL)
    for command in (["states", tmp_path / "run"], ["infill", tmp_path / "run", "the ___"]):
        assert run(*command) == 2
        assert "is for HMMs" in capsys.readouterr().err
