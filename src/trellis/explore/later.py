"""Answers that take longer than a request may. They are computed in the background, and the page asks again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from threading import Lock, Thread
from typing import Any

from trellis.explore.turns import BusyError, Job

PATIENCE = 20.0  # seconds after which work that nobody asks about any more is stopped


class NotReadyError(Exception):
    """The answer is still being computed."""

    def __init__(self, progress: float, doing: str) -> None:
        super().__init__(doing)
        self.progress, self.doing = progress, doing


class Work:
    """Runs a function in a thread of its own. The function gets a callback, and calls it with the share of work
    done."""

    def __init__(self, key: Hashable, function: Callable[[Callable[[float], None]], Any]) -> None:
        self.key, self.progress, self.asked, self.fetched = key, 0.0, time.monotonic(), False
        self.job = Job(lambda: function(self.report), math.inf)
        Thread(target=self.job.run, name="explore-later", daemon=True).start()

    @property
    def awaited(self) -> bool:
        """Whether somebody still asks for the result, who has not got it."""
        return not self.fetched and time.monotonic() - self.asked <= PATIENCE

    @property
    def ended(self) -> bool:
        return self.job.future.done()

    def report(self, done: float) -> None:
        self.progress = done
        if time.monotonic() - self.asked > PATIENCE:
            self.job.stop.set()


class Later:
    """One piece of work at a time. Its result is kept until the next one begins."""

    def __init__(self) -> None:
        self.lock, self.work = Lock(), None  # type: tuple[Lock, Work | None]

    def ask(self, key: Hashable, function: Callable[[Callable[[float], None]], Any], doing: str) -> Any:
        """The result of a function; raises NotReadyError until the result has been computed."""
        with self.lock:
            work = self.work
            if work is None or (work.ended and (stopped(work) or (work.key != key and not work.awaited))):
                work = self.work = Work(key, function)
        if work.key != key:
            raise NotReadyError(0.0, "Another question is being answered first")
        work.asked = time.monotonic()
        if not work.ended:
            raise NotReadyError(work.progress, doing)
        work.fetched = True
        return work.job.future.result()


def stopped(work: Work) -> bool:
    return isinstance(work.job.future.exception(), BusyError)
