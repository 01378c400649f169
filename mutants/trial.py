"""Tries mutants: each in a process of its own, forked from one that has imported the heavy packages already."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants.changes import Mutant

HEAVY = ("torch", "scipy.sparse.linalg", "scipy.stats", "sklearn.cluster", "numba", "hypothesis", "_pytest.main")
PATIENCE = 30.0, 3.0  # seconds that a run may take, and the factor by which it may exceed its duration without a mutant
BROKEN = 70  # exit code of a trial that did not reach pytest
PASSED = (0, 5)  # exit codes of pytest: all tests passed, none was collected
OPTIONS = (
    "-x",
    "-q",
    "--no-header",
    "--tb=line",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


@dataclass(frozen=True)
class Verdict:
    """The result of running tests against a mutant."""

    result: str  # killed, timeout, survived, uncovered or equivalent
    seconds: float
    by: str = ""  # the first test that failed, the file that could not be imported, or why the mutant is equivalent


class Chosen:
    """A pytest plugin: runs the given tests in the given order, and writes down the first that fails."""

    def __init__(self, tests: Sequence[str], failed: Path) -> None:
        self.order, self.failed = {test: place for place, test in enumerate(tests)}, failed

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.note(report)

    def pytest_collectreport(self, report: Any) -> None:
        self.note(report)

    def note(self, report: Any) -> None:
        if report.failed and not self.failed.exists():
            self.failed.write_text(report.nodeid)


def preload() -> None:
    """Import what every test needs, but nothing of the package."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def overlay(package: Path, mutant: Mutant, folder: Path) -> Path:
    """A folder for sys.path with the mutated package: links to the real one but for the folders of one file."""
    real, copy = package, folder / package.name
    copy.mkdir(parents=True)
    parts = Path(mutant.file).parts
    for part in parts:
        for entry in real.iterdir():
            if entry.name not in (part, "__pycache__"):
                (copy / entry.name).symlink_to(entry)
        real, copy = real / part, copy / part
        if part != parts[-1]:
            copy.mkdir()
    copy.write_bytes(mutant.applied(real.read_bytes()))
    return folder


def attempt(package: Path, mutant: Mutant | None, tests: Sequence[str], seconds: float) -> Verdict:
    """Run tests, which take so many seconds without the mutant, until one fails; without a mutant, as a control."""
    base, factor = PATIENCE
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    try:
        path = overlay(package, mutant, folder / "src") if mutant else package.parent
        child = os.fork()
        if child == 0:
            _run_tests(path, folder, tests)
        status = _wait(child, begin + base + factor * seconds)
        failed = folder / "failed"
        result = "timeout" if status is None else "survived" if status in PASSED else "killed"
        by = failed.read_text() if failed.exists() else "" if result != "killed" else f"exit code {status}"
        if status == BROKEN:
            raise RuntimeError((folder / "log").read_text(errors="replace"))
        return Verdict(result, time.monotonic() - begin, by)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_tests(path: Path, folder: Path, tests: Sequence[str]) -> None:
    """In the forked process: run pytest on the package in `path`, and leave with its exit code."""
    code = BROKEN
    try:
        os.setsid()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # tests may have workers
        sys.path.insert(0, str(path))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
        plugin, pytest = Chosen(tests, folder / "failed"), importlib.import_module("pytest")
        for files in _stages(tests):
            code = int(pytest.main([*OPTIONS, f"--basetemp={folder / 'tests'}", *files], plugins=[plugin]))
            if code not in PASSED:
                break
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _stages(tests: Sequence[str]) -> list[list[str]]:
    """The files of the tests: the first two one by one, since reading a file takes time, then all others."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    return [stage for stage in (files[:1], files[1:2], files[2:]) if stage]


def _wait(child: int, until: float) -> int | None:
    """The exit code of a process; None if it had to be killed."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
