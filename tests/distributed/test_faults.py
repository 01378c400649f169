"""Killed and hanging processes, restarts, and resuming with another number of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dying
import pytest
import torch
from processes import together
from test_together import TEXT

import trellis
from trellis import distributed
from trellis.distributed.job import Job
from trellis.errors import TrellisError
from trellis.learning.em import EMLearner
from trellis.storage import load_tensors
from trellis.training import loop, run
from trellis.training.checkpoint import LAST

ROUNDING = 1e-5  # of float32
OPTIONS: dict[str, Any] = {"states": 3, "learner": "stepwise-em", "order": "streams", "lanes": 5, "window": 6}
OPTIONS |= {"device": "cpu", "ngram": 0, "epochs": 1, "checkpoint_steps": 2}


def train(folder: Path, **more: Any) -> str:
    torch.set_num_threads(1)
    return trellis.train(TEXT, run=folder, resume=True, **OPTIONS | more).training["outcome"]


def assert_same(one: Path, other: Path, allowed: float = 0.0) -> None:
    """Equal checkpoints, to the last bit or up to rounding."""
    ours, theirs = load_tensors(one / LAST), load_tensors(other / LAST)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        same = torch.equal if not allowed else lambda a, b: torch.allclose(a, b, rtol=allowed, atol=allowed)
        assert same(value, theirs[name]), name


def test_resuming_gives_the_same_with_any_number_of_processes(tmp_path: Path) -> None:
    for name, sizes in {"two": [2], "again": [2, 2], "mixed": [2, 3], "alone": [1]}.items():
        for part, size in enumerate(sizes, 1):
            limit = {"max_steps": 10**6 if part == len(sizes) else 7}
            work = lambda name=name, limit=limit: train(tmp_path / name, **limit)  # noqa: E731
            assert set(together(size, work)) == {"epochs" if part == len(sizes) else "steps"}
    assert_same(tmp_path / "two", tmp_path / "again")
    assert_same(tmp_path / "two", tmp_path / "mixed", ROUNDING)
    assert_same(tmp_path / "two", tmp_path / "alone", ROUNDING)


def test_a_killed_process_ends_the_job_with_a_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    step = EMLearner.step

    def train_and_die() -> str:
        EMLearner.step = dying.step_or_die  # type: ignore[method-assign]
        return train(tmp_path / "killed")

    first, second = together(2, train_and_die)
    assert EMLearner.step is step
    assert second is None
    assert isinstance(first, TrellisError)
    assert str(first) == "Another process of this job has ended; continue from the last checkpoint with --resume."
    together(2, lambda: train(tmp_path / "killed"))
    together(2, lambda: train(tmp_path / "whole"))
    assert_same(tmp_path / "killed", tmp_path / "whole")


def test_a_hanging_process_is_a_timeout_with_a_sentence() -> None:
    def wait() -> None:
        if distributed.rank() == 1:
            time.sleep(4)
        distributed.largest(1.0)

    first, _ = together(2, wait, seconds=1.0)
    assert isinstance(first, TrellisError)
    assert "did not answer for 1 seconds (TRELLIS_TIMEOUT)" in str(first)


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


def test_a_signal_to_one_process_stops_all_with_a_checkpoint(tmp_path: Path) -> None:
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
    together(2, lambda: train(tmp_path / "whole"))
    assert_same(tmp_path / "stopped", tmp_path / "whole")


def test_a_restart_resumes_only_what_the_same_job_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / run.JOB).write_text(distributed.job())
    assert not run.was_begun(tmp_path)
    monkeypatch.setattr(Job, "size", 2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run.was_begun(tmp_path)
    assert not run.was_begun(None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert not run.was_begun(tmp_path)
