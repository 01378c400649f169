"""Killed and hanging processes, restarts, and resuming with another number of processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import dying
import pytest
import torch
from processes import together
from test_together import CASES, EXACT, ROUNDING, TEXT, in_float64

import trellis
from trellis import distributed
from trellis.distributed.job import Job
from trellis.errors import TrellisError
from trellis.families.hmm import model as hmm
from trellis.learning.em import EMLearner
from trellis.learning.gradient import GradientLearner
from trellis.storage import load_tensors
from trellis.training import fit, loop, run
from trellis.training.checkpoint import LAST
from trellis.transitions import stripes

OPTIONS: dict[str, Any] = {"states": 3, "learner": "stepwise-em", "order": "streams", "lanes": 5, "window": 6}
OPTIONS |= {"device": "cpu", "ngram": 0, "epochs": 1, "checkpoint_steps": 2}
LEARNERS: dict[str, type] = {"stepwise-em": EMLearner, "gradient": GradientLearner}
SENTENCE = "Another process of this job %s; continue from the last checkpoint with --resume."


def train(folder: Path, text: Any = TEXT, **more: Any) -> str:
    torch.set_num_threads(1)
    return trellis.train(text, run=folder, resume=True, **OPTIONS | more).training["outcome"]


def assert_same(one: Path, other: Path, allowed: float = 0.0) -> None:
    """Equal checkpoints, to the last bit or up to rounding."""
    ours, theirs = load_tensors(one / LAST), load_tensors(other / LAST)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if not allowed:
            assert torch.equal(value, theirs[name]), name
        elif not name.startswith("random."):  # one process does not set the seed of every step
            assert torch.allclose(value, theirs[name], rtol=allowed, atol=allowed), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert together(2, lambda: train(folder)) == ["epochs"] * 2
    return folder


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, EXACT),
        ({"learner": "gradient", "average": 0.9, "lr": 0.01}, ROUNDING),
        (CASES["neural, state dropout"] | {"checkpoint_steps": 2}, ROUNDING),
    ],
    ids=["stepwise EM", "gradient", "divided tables"],
)
def test_resuming_gives_the_same_with_any_number_of_processes(options: dict, allowed: float, tmp_path: Path) -> None:
    """In float64, and with the same number of processes to the last bit."""

    def run(name: str, size: int, **more: Any) -> set[str]:
        with (
            mock.patch.object(fit, "by_steps", partial(fit.by_steps, build=in_float64)),
            mock.patch.object(stripes, "FEWEST", 2),
            mock.patch.object(hmm, "FEW", 0.5),
        ):
            return set(together(size, lambda: train(tmp_path / name, **{"checkpoint_steps": 0} | options | more)))

    assert run("two", 2) == {"epochs"}
    assert run("begun", 2, max_steps=7) == {"steps"}
    for size in (1, 2, 3):
        shutil.copytree(tmp_path / "begun", tmp_path / f"in {size}")
        assert run(f"in {size}", size, max_steps=10**6) == {"epochs"}
        assert_same(tmp_path / "two", tmp_path / f"in {size}", 0.0 if size == 2 else allowed)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_job_with_a_sentence_and_nothing_is_lost(
    rank: int, whole: Path, tmp_path: Path
) -> None:
    step = EMLearner.step

    def train_and_die() -> str:
        dying.RANK = rank
        EMLearner.step = dying.step_or_die  # type: ignore[method-assign]
        return train(tmp_path / "killed")

    found = together(2, train_and_die)
    assert EMLearner.step is step
    assert found[rank] is None
    assert isinstance(found[1 - rank], TrellisError)
    assert str(found[1 - rank]) == SENTENCE % "has ended"
    assert together(2, lambda: train(tmp_path / "killed")) == ["epochs"] * 2
    assert_same(tmp_path / "killed", whole)


def test_a_hanging_process_is_a_timeout_with_a_sentence() -> None:
    def wait() -> None:
        if distributed.rank() == 1:
            time.sleep(4)
        distributed.largest(1.0)

    first, _ = together(2, wait, seconds=1.0)
    assert isinstance(first, TrellisError)
    assert "did not answer for 1 seconds (TRELLIS_TIMEOUT)" in str(first)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_process_that_hangs_in_a_training_step_is_a_timeout(learner: str, tmp_path: Path) -> None:
    kind, told, began = LEARNERS[learner], tmp_path / "told", list[int]()
    step = kind.step

    def hang(self, batch):
        began.append(self.steps)
        while distributed.rank() == 1 and self.steps == dying.AT:
            time.sleep(0.05)
            if told.exists():
                raise InterruptedError
        result = step(self, batch)
        began.pop()
        return result

    def train_and_hang() -> tuple[str, list[int]]:
        kind.step = hang
        try:
            return train(tmp_path / "run", learner=learner), began
        except TrellisError as error:
            told.touch()
            return str(error), began

    together(1, lambda: train(tmp_path / "first", learner=learner, max_steps=1))  # compiles what is not yet compiled
    waiting, hanging = together(2, train_and_hang, seconds=2.0)
    assert waiting == (SENTENCE % "did not answer for 2 seconds (TRELLIS_TIMEOUT)", [dying.AT])
    assert isinstance(hanging, InterruptedError)


def test_one_process_reports_the_error_of_a_job() -> None:
    assert sorted(together(3, distributed.speaks_first)) == [False, False, True]


def test_torchrun_restarts_a_killed_job(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    torchrun = "torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=1 --monitor-interval=0.1"
    given = ["train", "--data", tmp_path / "text.txt", "--run", tmp_path / "run", "--device", "cpu", "--states", "3"]
    choices = {"train": ("learner", "epochs", "checkpoint_steps"), "batches": ("lanes", "window", "order")}
    for section, names in choices.items():
        given += [word for name in names for word in ("--set", f"{section}.{name}={OPTIONS[name]}")]
    result = subprocess.run(
        [sys.executable, "-m", *torchrun.split(), "--", dying.__file__, *map(str, given), "--set", "eval.ngram=0"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TRELLIS_CACHE": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "exitcode: -9" in result.stderr
    assert result.stderr.count("trellis: Another process of this job has ended") == 1
    assert result.stdout.count("Model and report written to") == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert (tmp_path / "run" / "model.safetensors").exists()
    together(2, lambda: train(tmp_path / "whole", str(tmp_path / "text.txt")))
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_signal_to_one_process_stops_all_with_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    step = EMLearner.step

    def signalled(self, batch):
        if distributed.rank() == 1 and self.steps == dying.AT:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch)

    def train_and_signal() -> str:
        EMLearner.step = signalled  # type: ignore[method-assign]
        loop.BETWEEN = 0.0  # compare signals after every step
        return train(tmp_path / "stopped")

    assert together(2, train_and_signal) == ["interrupted"] * 2
    together(2, lambda: train(tmp_path / "stopped"))
    assert_same(tmp_path / "stopped", whole)


def test_a_restart_resumes_only_what_the_same_job_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / run.JOB).write_text(distributed.job())
    assert not run.was_begun(tmp_path)
    monkeypatch.setattr(Job, "size", 2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run.was_begun(tmp_path)
    assert not run.was_begun(None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert not run.was_begun(tmp_path)
