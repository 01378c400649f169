"""Queries of several clients: a few at a time, with limits on how long each may take and how many may wait."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar, cast

from torch.overrides import TorchFunctionMode

T = TypeVar("T")
SECONDS = 30.0  # that a client waits for its answer
MOST_WAITING = 32  # queries in the queue
LANES = 4  # queries at a time


class BusyError(Exception):
    """The answer took too long, or too many queries are waiting."""

    @classmethod
    def after(cls, seconds: float) -> BusyError:
        return cls(f"There was no answer within {seconds:g} seconds; ask something smaller, or wait.")


class Limited(TorchFunctionMode):
    """A context in which torch operations of this thread raise BusyError after some seconds, or once `stop` is set."""

    def __init__(self, seconds: float, stop: Event) -> None:
        super().__init__()
        self.seconds, self.end, self.stop = seconds, time.monotonic() + seconds, stop

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.stop.is_set() or time.monotonic() > self.end:
            raise BusyError.after(self.seconds)
        return function(*args, **(kwargs or {}))


class Job:
    """A function that waits for a free thread. It is stopped after some seconds, or when its client has gone away."""

    def __init__(self, function: Callable[[], Any], seconds: float) -> None:
        self.function, self.seconds, self.future, self.stop = function, seconds, Future[Any](), Event()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            with Limited(self.seconds, self.stop):
                self.future.set_result(self.function())
        except BaseException as error:
            self.future.set_exception(error)


class Turns:
    """Runs functions in a few threads, in the order of their arrival.

    A client stops waiting after `seconds`. Its query is then dropped from the queue, or stopped at its next torch
    operation. A slow query therefore blocks one thread for a limited time only.

    The threads are daemons, so that the program can end while a query runs."""

    def __init__(self, seconds: float = SECONDS, most: int = MOST_WAITING, lanes: int = LANES) -> None:
        self.seconds, self.most, self.lanes = seconds, most, lanes
        self.waiting: set[Future[Any]] = set()  # queries of clients that are not done
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        for lane in range(lanes):
            Thread(target=self.work, name=f"explore-{lane}", daemon=True).start()

    def work(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()

    def submit(self, function: Callable[[], Any], seconds: float = math.inf) -> Job:
        job = Job(function, seconds)
        self.jobs.put(job)
        return job

    async def answer(self, function: Callable[[], T]) -> T:
        """Run a function when its turn has come, and return its result; raises BusyError."""
        if len(self.waiting) >= self.most:
            raise BusyError("Too many questions are waiting; try again in a few seconds.")
        job = self.submit(function, self.seconds)
        self.waiting.add(job.future)
        job.future.add_done_callback(self.waiting.discard)
        try:
            return cast(T, await asyncio.wait_for(asyncio.wrap_future(job.future), self.seconds))
        except TimeoutError:
            raise BusyError.after(self.seconds) from None
        finally:
            job.stop.set()  # also if the client has gone away

    def run(self, function: Callable[[], T]) -> T:
        """Run a function for a background thread when its turn has come, and return its result."""
        return cast(T, self.submit(function).future.result())

    def close(self) -> None:
        """End the threads after the queries in the queue."""
        for _ in range(self.lanes):
            self.jobs.put(None)
