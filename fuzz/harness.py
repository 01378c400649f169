"""Run the cases of a target, each with its own random numbers, within limits on time and memory."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from random import Random
from typing import Any, Protocol

from numba.core.event import Listener, register

from trellis import extensions
from trellis.errors import TrellisError
from trellis.progress import set_quiet

SLOW = 20  # seconds of CPU time that a case may take, without compilation
WAITING = 15  # the wall time of a case, at most, in units of SLOW
ADDRESS_SPACE = 12 << 30  # bytes beyond what the process has mapped before the first case
LONGEST = 50_000  # characters of a message
EXIT_CODES = 0, 2
SHARED = "/dev/shm"  # files in memory, whose writes need not wait for a disk


class Fuzzed(Protocol):
    """A target: prepared once in an empty folder, then called with valid input and with random input."""

    def __init__(self, folder: Path) -> None: ...

    def honest(self) -> None:
        """Process valid input; the memory that this needs is the honest need."""

    def case(self, random: Random) -> None:
        """Process one random input."""


class FindingError(Exception):
    """A case that ended, but not as it should."""


class Slow(BaseException):
    """A case took too long."""


@dataclass
class Outcome:
    """What the cases of a target came to."""

    accepted: int = 0
    rejected: int = 0
    slowest: float = 0.0
    peak: int = 0  # bytes
    findings: dict[str, int] = field(default_factory=dict)  # by place, with the first case that led there


def run(name: str, kind: type[Fuzzed], seed: int, seconds: float, cases: int) -> int:
    """Run cases until time is up, or until an interrupt; print the findings, and a summary as one JSON line. Returns
    the exit code."""
    out, number = Outcome(), 0
    with prepared(kind) as target:
        reset_peak()
        target.honest()
        honest, begun = peak_memory(), time.monotonic()
        with suppress(KeyboardInterrupt):
            while number < cases and time.monotonic() - begun < seconds:
                try_case(name, target, seed, number, out, 2 * honest)
                number += 1
        ended = time.monotonic()
    line = {
        "fuzz": name,
        "seed": seed,
        "cases": number,
        "accepted": out.accepted,
        "rejected": out.rejected,
        "findings": len(out.findings),
        "slowest_s": round(out.slowest, 2),
        "honest_mb": honest >> 20,
        "peak_mb": out.peak >> 20,
        "seconds": round(ended - begun, 1),
    }
    print(json.dumps(line), flush=True)
    return 1 if out.findings else 0


def replay(name: str, kind: type[Fuzzed], seed: int, number: int) -> int:
    """Run one case, and show its error with a traceback."""
    with prepared(kind) as target:
        try:
            with limited_time():
                target.case(random_of(name, seed, number))
        except BaseException:
            traceback.print_exc()
            return 1
    return 0


@contextmanager
def prepared(kind: type[Fuzzed]) -> Any:
    """The target in a temporary folder with a cache of its own, and with bounded memory."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    set_quiet(True)
    extensions.entry_points = cache(entry_points)  # type: ignore[assignment]  # read once, for speed
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=SHARED if os.access(SHARED, os.W_OK) else None) as folder:
        os.environ["TRELLIS_CACHE"] = str(Path(folder) / "cache")
        before = os.getcwd()
        os.chdir(folder)
        target = kind(Path(folder))
        with suppress(OSError, ValueError):
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE, -1))
        try:
            yield target
        finally:
            os.chdir(before)


def random_of(name: str, seed: int, number: int) -> Random:
    return Random(f"{name} {seed} {number}")


def try_case(name: str, target: Fuzzed, seed: int, number: int, out: Outcome, most: int) -> None:
    """Run one case and classify how it ends."""
    reset_peak()
    begun = CLOCK.seconds()
    try:
        with limited_time():
            target.case(random_of(name, seed, number))
        out.accepted += 1
    except TrellisError as error:
        out.rejected += 1
        if wrong := complaint(str(error)):
            found(name, seed, number, out, f"{wrong}: {str(error)[:200]!r}", place(error))
    except (Exception, Slow) as error:
        found(name, seed, number, out, f"{type(error).__name__}: {str(error)[:300]}", place(error))
    out.slowest = max(out.slowest, CLOCK.seconds() - begun)
    memory = peak_memory()
    out.peak = max(out.peak, memory)
    if memory > most:
        found(name, seed, number, out, f"{memory >> 20} MB, more than {most >> 20} MB", "memory")


def complaint(message: str) -> str:
    """What is wrong with the text of an error, if anything."""
    if not message.strip():
        return "no message"
    if any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in message):
        return "a message with control characters"
    return "a message that is too long" if len(message) > LONGEST else ""


def found(name: str, seed: int, number: int, out: Outcome, what: str, where: str) -> None:
    """Print a finding the first time that it occurs at a place."""
    if where not in out.findings:
        print(f"{name}: {what}\n  at {where}\n  python -m fuzz {name} --seed {seed} --case {number}", file=sys.stderr)
    out.findings.setdefault(where, number)


def place(error: BaseException) -> str:
    """The type of an error, and where Trellis raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "fuzz/harness" not in frame.filename]
    own = [frame for frame in frames if "/trellis/" in frame.filename] or frames
    return type(error).__name__ + "".join(f" {Path(frame.filename).name}:{frame.lineno}" for frame in own[-2:])


class Clock(Listener):
    """CPU time of this process without compilation: it depends neither on other processes nor on what is compiled."""

    def __init__(self) -> None:
        self.depth, self.compiled, self.begun = 0, 0.0, 0.0

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            self.begun = time.process_time()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.compiled += time.process_time() - self.begun

    def seconds(self) -> float:
        return (self.begun if self.depth else time.process_time()) - self.compiled


CLOCK = Clock()
register("numba:compile", CLOCK)


@contextmanager
def limited_time() -> Any:
    """Raise `Slow` after SLOW seconds of CPU time, or after WAITING times as long on the wall clock."""
    begun, latest = CLOCK.seconds(), time.monotonic() + WAITING * SLOW

    def ring(*_: Any) -> None:
        left = min(begun + SLOW - CLOCK.seconds(), latest - time.monotonic())
        if left <= 0:
            raise Slow(f"more than {SLOW} seconds")
        signal.setitimer(signal.ITIMER_REAL, left)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SLOW)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def reset_peak() -> None:
    """Begin a new measurement of the peak of resident memory, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The peak of resident memory in bytes."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
