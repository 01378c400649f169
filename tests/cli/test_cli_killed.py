"""Trainings that are killed or interrupted, and resumed. They run in processes forked from this one, which start
sooner than new ones; where there is a GPU, in new ones."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from running import run
from trellis.cli.main import main
from trellis.models.files import FILE, LAST
from trellis.storage import load_tensors

SETTINGS = {
    "model.states": 8, "batches.lanes": 4, "batches.window": 4, "train.epochs": 10, "train.learner": "gradient",
    "train.lr": 0.05, "train.schedule": "cosine", "train.average": 0.9, "train.checkpoint_steps": 3,
}  # fmt: skip
GRADIENT = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
FACTORIAL = ["--model", "fhmm", "--states", "3", "--set", "model.layers=2", "--set", "batches.order=sentences",
             "--set", "batches.tokens=64", "--set", "train.epochs=6", "--set", "train.checkpoint_steps=1"]  # fmt: skip
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
APART = {"cpu": 0.0, "cuda": 0.01}  # nats, of states that hardly ever emit a word


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a forked process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def arguments(text: Path, folder: Path, *words: str) -> list[str]:
    return ["train", "--data", str(text), "--run", str(folder), "--resume", "--quiet", *words]


def start(text: Path, folder: Path, *words: str) -> BaseProcess:
    """Begin a training, or resume it."""
    context = get_context("spawn" if torch.cuda.is_available() else "fork")
    process = context.Process(target=main, args=(arguments(text, folder, *words),))
    process.start()
    return process


def finish(text: Path, folder: Path, *words: str) -> dict[str, Tensor]:
    """The model of a training, which ends by itself."""
    assert run(*arguments(text, folder, *words)) == 0
    return load_tensors(folder / FILE, torch.device("cpu"))


def last_step(folder: Path) -> int:
    """The latest step in the metrics, 0 where there are none."""
    try:
        return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    except (OSError, IndexError, ValueError):
        return 0


def wait_for_a_step(process: BaseProcess, folder: Path) -> None:
    before = last_step(folder)
    while process.is_alive() and last_step(folder) == before:
        time.sleep(0.01)


def test_kill_9_and_resume_end_in_the_same_bits(text: Path, tmp_path: Path) -> None:
    straight, killed = finish(text, tmp_path / "straight", *GRADIENT), tmp_path / "killed"
    rng = random.Random(0)
    for _ in range(3):
        process = start(text, killed, *GRADIENT)
        wait_for_a_step(process, killed)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    resumed = finish(text, killed, *GRADIENT)
    assert straight.keys() == resumed.keys()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_an_interrupted_run_leaves_a_usable_checkpoint(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(text, folder, *GRADIENT)
    wait_for_a_step(process, folder)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    assert (folder / LAST).exists()
    assert not (folder / FILE).exists()
    assert finish(text, folder, *GRADIENT)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_killed_factorial_training_ends_the_same(device: str, text: Path, tmp_path: Path) -> None:
    """To the last bit on the CPU; a GPU adds up visits of words in any order."""
    words, killed = [*FACTORIAL, "--device", device], tmp_path / "killed"
    ours = finish(text, tmp_path / "whole", *words)
    process = start(text, killed, *words)
    while process.is_alive() and not (killed / LAST).exists():
        time.sleep(0.005)
    process.kill()
    process.join()
    assert not (killed / FILE).exists()
    theirs = finish(text, killed, *words)
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=0, atol=APART[device])
