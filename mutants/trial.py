"""Tries mutants: each in a process of its own, forked from one that has imported and collected everything already."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any
from uuid import uuid4

from mutants.changes import Mutant
from mutants.session import OPTIONS, WAITING, Session
from mutants.swapping import NotInFunctionsError, Place, Replacement, replacements

PATIENCE = 3.0, 3.0  # seconds of CPU time that a test may take, and the factor by which it may exceed its duration
STARTING = 20.0  # seconds that a new process may take for imports


@dataclass(frozen=True)
class Verdict:
    """The result of running tests against a mutant."""

    result: str  # killed, timeout, survived, uncovered or equivalent
    seconds: float
    by: str = ""  # the first test that failed, how the process ended, or why the mutant is equivalent


@dataclass(frozen=True)
class Trials:
    """What trials need: the package, a session of pytest, the loaded functions, and the durations of the tests."""

    package: Path
    session: Session
    functions: dict[Place, list[FunctionType]]
    seconds: dict[str, float]

    def attempt(self, mutant: Mutant | None, tests: Sequence[str]) -> Verdict:
        """Run tests until one fails; without a mutant, as a control."""
        begin = time.monotonic()
        with temporary() as folder:
            try:
                result, by = self.in_a_fork(self.replaced(mutant) if mutant else [], tests, folder)
            except NotInFunctionsError:
                result, by = self.in_a_new_process(mutant, tests, folder)
        return Verdict(result, time.monotonic() - begin, by)

    def replaced(self, mutant: Mutant) -> list[Replacement]:
        file = self.package / mutant.file
        return replacements(self.functions, file, mutant.applied(file.read_bytes()))

    def in_a_fork(self, changes: list[Replacement], tests: Sequence[str], folder: Path) -> tuple[str, str]:
        """Run tests in a copy of this process with changed functions."""
        note, longest = folder / "failed", sum(map(self.limit, tests))

        def call() -> None:
            for function, code in changes:
                function.__code__ = code
            resource.setrlimit(resource.RLIMIT_CPU, (int(longest) + 1, int(longest) + 2))
            note.write_text(self.session.first_failure(tests, self.limit))

        status = wait(forked(call, folder), WAITING * longest)
        if status is None or status == -signal.SIGXCPU:
            return "timeout", ""
        failed = note.read_text() if status == 0 else f"exit code {status}"
        return "killed" if failed else "survived", failed

    def in_a_new_process(self, mutant: Mutant | None, tests: Sequence[str], folder: Path) -> tuple[str, str]:
        """Run tests on a copy of the package."""
        path = overlay(self.package, mutant, folder / "src") if mutant else self.package.parent
        variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "pytest", "-x", *OPTIONS, f"--basetemp={folder / 'tests'}", *tests]
        longest = WAITING * (STARTING + sum(map(self.limit, tests)))
        try:
            done = subprocess.run(command, env=variables, timeout=longest, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            return "timeout", ""
        named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        failed = "" if done.returncode == 0 else named[1] if named else f"exit code {done.returncode}"
        return "killed" if failed else "survived", failed

    def limit(self, test: str) -> float:
        """The seconds of CPU time that a test may take."""
        base, factor = PATIENCE
        return base + factor * self.seconds.get(test, STARTING)


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


@contextmanager
def temporary() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def forked(call: Callable[[], None], folder: Path) -> int:
    """Begin a call in a new process, which prints nothing and has its temporary files in a folder; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # tests may have workers
        call()
        code = 0
    finally:
        os._exit(code)


def results_of(calls: Iterable[Callable[[], Any]], jobs: int) -> Iterator[Any]:
    """The results of calls, each in a process of its own, in the order in which they end."""
    waiting, running = iter(calls), dict[int, Path]()
    with temporary() as folder:
        while True:
            for call in islice(waiting, jobs - len(running)):
                output = folder / str(uuid4())
                running[forked(partial(_write, call, output), folder)] = output
            if not running:
                return
            child, _ = os.wait()
            output = running.pop(child)
            if output.exists():
                yield json.loads(output.read_text())
            else:
                print("A process died, and its result is missing.", file=sys.stderr)


def _write(call: Callable[[], Any], output: Path) -> None:
    output.write_text(json.dumps(call()))


def wait(child: int, seconds: float) -> int | None:
    """The exit code of a process; None if it had to be killed."""
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
