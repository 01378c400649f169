"""One session of pytest that imports and collects everything once; tests then run in processes forked from it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mutants.covering import recorder

OPTIONS = (
    "-q",
    "--no-header",
    "--tb=no",
    "--capture=sys",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:randomly",
)
WAITING = 40  # the wall time of a test, at most, in units of its CPU time


class SlowError(BaseException):
    """A test took too long."""


class Session:
    """A pytest plugin. Calls `work` in place of running the collected tests."""

    def __init__(self, work: Callable[[Session], None]) -> None:
        self.work, self.items, self.failed = work, dict[str, pytest.Item](), False

    def pytest_sessionstart(self) -> None:
        from hypothesis import HealthCheck, Phase, settings  # it is a plugin itself, and has to be loaded by pytest

        calm = list(HealthCheck)  # some depend on how busy the machine is
        settings.register_profile(
            "mutants", settings.default, database=None, derandomize=True, suppress_health_check=calm,
            phases=[Phase.explicit, Phase.generate],
        )  # fmt: skip
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def run(self, test: str, following: str | None, seconds: float) -> bool:
        """Run one test for at most so many seconds of CPU time; returns whether it passed."""
        self.failed, item = False, self.items[test]
        try:
            with limited_time(seconds):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=self.items.get(following or ""))
        except SlowError:
            return False
        return not self.failed

    def record(self, tests: Sequence[str], package: Path, watched: Sequence[Path], longest: float) -> Iterator[Any]:
        """Run tests one after another; yields the lines, the duration and the outcome of each."""
        lines = recorder({str(file) for file in watched})
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            begin = time.process_time()
            lines.start()
            passed = self.run(test, following, longest)
            found = {str(Path(file).relative_to(package)): sorted(each) for file, each in lines.stop().items() if each}
            seconds = round(time.process_time() - begin, 3)
            yield {"test": test, "seconds": seconds, "passed": passed, "lines": found}

    def first_failure(self, tests: Sequence[str], longest: Callable[[str], float]) -> str:
        """Run tests until one fails; returns its name, or nothing."""
        pairs = zip(tests, [*tests[1:], None], strict=True)
        return next((test for test, following in pairs if not self.run(test, following, longest(test))), "")


@contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raise SlowError after so many seconds of CPU time, or WAITING times as many on the clock; repeatedly."""

    def ring(*_: Any) -> None:
        raise SlowError

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, seconds), signal.ITIMER_REAL: (signal.SIGALRM, WAITING * seconds)}
    for timer, (number, after) in timers.items():
        signal.signal(number, ring)
        signal.setitimer(timer, after, after)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
