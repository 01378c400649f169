"""Factorial HMMs by the same commands as any model, and a training that is killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import trellis
from running import run
from trellis.families.factorial.model import FHMM
from trellis.storage import load_tensors

SMALL = ["--model", "fhmm", "--states", "3", "--set", "model.layers=2", "--set", "batches.order=sentences",
         "--set", "batches.tokens=64", "--set", "train.lr=0.05", "--set", "train.epochs=6"]  # fmt: skip
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
APART = {"cpu": 0.0, "cuda": 0.01}  # nats, of states that hardly ever say a word
LONG = [*SMALL, "--set", "train.epochs=20", "--set", "train.checkpoint_steps=1"]


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_killed_training_ends_the_same(device: str, text: Path, tmp_path: Path) -> None:
    """To the last bit on the CPU; a GPU adds up visits of words in any order."""
    words = ["train", "--data", str(text), *LONG, "--device", device, "--quiet", "--run"]
    command = [sys.executable, "-m", "trellis", *words]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, str(whole)], check=True)
    child = subprocess.Popen([*command, str(killed)], env=dict(os.environ), stderr=subprocess.DEVNULL)
    while child.poll() is None and not (killed / "last.safetensors").exists():
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (killed / "model.safetensors").exists()
    subprocess.run([*command, str(killed), "--resume"], check=True)
    ours, theirs = (load_tensors(folder / "model.safetensors", torch.device("cpu")) for folder in (whole, killed))
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=0, atol=APART[device])
