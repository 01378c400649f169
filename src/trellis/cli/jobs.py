"""Work on chunks of sentences in several processes, with the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from trellis.errors import TrellisError

AHEAD = 2  # chunks per process that are read before their turn
A = TypeVar("A")

_work: Callable[[Any], Any] | None = None  # the function that the forked processes call


def each_chunk(work: Callable[[Any], A], chunks: Iterable[Any], jobs: int, device: str) -> Iterator[A]:
    """work(chunk) of every chunk, in order. The processes are forked from this one, so they share the memory of the
    model that `work` uses."""
    if jobs == 1:
        return map(work, chunks)
    if device != "cpu":
        raise TrellisError("--jobs uses the processors: pass --device cpu, or leave out --jobs.")
    return _in_processes(work, chunks, jobs)


def _in_processes(work: Callable[[Any], A], chunks: Iterable[Any], jobs: int) -> Iterator[A]:
    global _work
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    if "fork" not in multiprocessing.get_all_start_methods():
        raise TrellisError("--jobs needs an operating system that can fork processes; leave it out.")
    _work = work
    waiting = deque[Future[A]]()
    try:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
            for chunk in chunks:
                waiting.append(pool.submit(_answer, chunk))
                if len(waiting) > AHEAD * jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise TrellisError("A process of --jobs has ended, perhaps for lack of memory; use fewer.") from error


def _answer(chunk: Any) -> Any:
    assert _work is not None
    return _work(chunk)
