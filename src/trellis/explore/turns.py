"""Queries of several clients, one after the other, with limits on how long and how many may wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS = 30.0  # that a client waits for its answer
MOST_WAITING = 32  # queries in the queue


class Busy(Exception):  # noqa: N818
    """The answer took too long, or too many queries are waiting."""


class Turns:
    """Runs functions in one thread, in the order of their arrival. A client stops waiting after `seconds`. If its query
    has not been started by then, it is dropped. Otherwise it is finished, but its answer is not sent.

    The thread is a daemon, so that the program can end while a query runs."""

    def __init__(self, seconds: float = SECONDS, most: int = MOST_WAITING) -> None:
        self.seconds, self.most = seconds, most
        self.waiting: set[Future[Any]] = set()  # queries of clients that are not done
        self.jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        Thread(target=self.work, name="explore", daemon=True).start()

    def work(self) -> None:
        while (job := self.jobs.get()) is not None:
            future, function = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    def submit(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self.jobs.put((future, function))
        return future

    async def answer(self, function: Callable[[], T]) -> T:
        """Run a function when its turn has come, and return its result; raises Busy."""
        if len(self.waiting) >= self.most:
            raise Busy("Too many questions are waiting; try again in a few seconds.")
        future = self.submit(function)
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.seconds)
        except TimeoutError:
            raise Busy(
                f"There was no answer within {self.seconds:g} seconds; ask something smaller, or wait."
            ) from None

    def run(self, function: Callable[[], T]) -> T:
        """Run a function for a background thread when its turn has come, and return its result."""
        return self.submit(function).result()

    def close(self) -> None:
        """End the thread after the queries in the queue."""
        self.jobs.put(None)
