"""Checkpoints and run folders: changed files, with and without a valid checksum; the run is loaded and resumed."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import trellis
from fuzz.models import changed_header, changed_tensors, use
from fuzz.mutations import changed_bytes
from fuzz.small import SENTENCES
from trellis.models.files import BEST, LAST
from trellis.storage import load_tensors, read_metadata, save_tensors
from trellis.training import run

STEPS: dict[str, Any] = {
    "tokenizer": "whitespace", "min_count": 1, "device": "cpu", "checkpoint_steps": 1, "epochs": 3, "log_every": 1,
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "em": {"states": 2, "learner": "em"},
    "stepwise": {"states": 2},
    "gradient": {"states": 2, "learner": "gradient"},
}
REPORTED = 0.01  # share of the resumed runs that write a report


class KilledError(Exception):
    """Ends a run early."""


class Stop(trellis.Callback):
    """Ends a run at its second evaluation, as a kill would."""

    evaluations = 0

    def on_evaluation(self, state: object, metrics: object) -> None:
        self.evaluations += 1
        if self.evaluations == 2:
            raise KilledError


class Target:
    """Load and resume unfinished runs whose files are damaged."""

    def __init__(self, folder: Path) -> None:
        self.kept, self.run = folder / "kept", folder / "run"
        for name, options in RUNS.items():
            with suppress(KilledError):
                trellis.train(SENTENCES * 8, self.kept / name, callbacks=[Stop()], **STEPS, **options)
            assert (self.kept / name / LAST).exists()

    def honest(self) -> None:
        for name in RUNS:
            self.restore(name)
            self.resume(name)

    def restore(self, name: str) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.kept / name, self.run)

    def resume(self, name: str, reported: bool = True) -> None:
        """Finish a run; mostly without its report, which takes most of the time."""
        without = patch.object(run, "write_report"), patch.object(run, "write_card")
        with ExitStack() as stack:
            for each in () if reported else without:
                stack.enter_context(each)
            trellis.train(SENTENCES * 8, self.run, resume=True, **STEPS, **RUNS[name])

    def case(self, random: Random) -> None:
        name = random.choice([*RUNS])
        self.restore(name)
        files = sorted(path for path in self.run.iterdir() if path.is_file() and path.name != ".lock")
        file = random.choice([self.run / LAST, self.run / LAST, *files])
        if file.name in (LAST, BEST) and file.exists() and random.random() < 0.7:
            tensors, header = load_tensors(file), read_metadata(file)
            change = random.choice([changed_header, changed_tensors])
            save_tensors(file, *change(random, tensors, header))
        elif random.random() < 0.1:
            file.unlink()
        else:
            file.write_bytes(changed_bytes(random, file.read_bytes()))
        if random.random() < 0.3:
            use(trellis.load(self.run))
        self.resume(name, reported=random.random() < REPORTED)
