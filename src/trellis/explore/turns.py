"""Queries of several clients, one after the other, with limits on how long and how many may wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS = 30.0  # that a client waits for its answer
MOST_WAITING = 32  # queries in the queue


class Busy(Exception):  # noqa: N818
    """The answer took too long, or too many queries are waiting."""


class Turns:
    """Runs functions in one thread, in the order of their arrival. A client stops waiting after `seconds`: a query that
    has not begun is then dropped, and one that has begun is finished, but its answer is not sent."""

    def __init__(self, seconds: float = SECONDS, most: int = MOST_WAITING) -> None:
        self.seconds, self.most, self.waiting = seconds, most, 0
        self.pool = ThreadPoolExecutor(1, "explore")

    async def answer(self, function: Callable[[], T]) -> T:
        """The result of a function, when its turn has come; raises Busy."""
        if self.waiting >= self.most:
            raise Busy("Too many questions are waiting; try again in a few seconds.")
        self.waiting += 1
        future = self.pool.submit(function)
        future.add_done_callback(self.done)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.seconds)
        except TimeoutError:
            raise Busy(
                f"There was no answer within {self.seconds:g} seconds; ask something smaller, or wait."
            ) from None

    def done(self, future: Future[Any]) -> None:
        self.waiting -= 1

    def run(self, function: Callable[[], T]) -> T:
        """The result of a function of a background thread, when its turn has come."""
        return self.pool.submit(function).result()

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
