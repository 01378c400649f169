"""Work that one process does for all, while the other processes wait for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from trellis.distributed.job import Job, explained, is_first, is_joined, is_late, local_rank, patience, rank
from trellis.errors import TrellisError

BEATS = 4  # how many signs of life a working process gives in `patience()` seconds
DONE, FAILED, DIED = b"d", b"f", b"x"  # how a turn ended: the first byte that its process stores

A = TypeVar("A")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """A context that the first process of each machine leaves before the others enter it.

    The other processes find the results of the first one in the cache. If the first one fails, the others fail with the
    same message. It may work for longer than `patience()` seconds, as long as it is alive."""
    if not is_joined():
        yield
        return
    machine = rank() - local_rank() if "LOCAL_RANK" in os.environ else 0
    with _turn_of(machine):
        yield


def from_first(make: Callable[[], A]) -> A:
    """Call `make` in the first process alone, and send its result to all processes."""
    if not is_joined():
        return make()
    import torch.distributed as dist

    made: list[Any] = [None]
    with _turn_of(0):
        if is_first():
            with _alone():
                made = [make()]
    with explained():
        dist.broadcast_object_list(made, device="cpu", group=Job.group)  # type: ignore[arg-type]
    return made[0]


@contextmanager
def _turn_of(number: int) -> Iterator[None]:
    """A context in which one process works; the others enter it when the work is done, or raise if it failed."""
    Job.turns += 1
    turn = f"turn/{Job.turns}/{number}"
    if rank() != number:
        _wait_for(turn, number)
        yield
        return
    ended = DIED
    try:
        with _beating():
            yield
        ended = DONE
    except TrellisError as error:
        ended = FAILED + str(error).encode()
        raise
    finally:
        with suppress(RuntimeError):  # the store has ended, and with it the job
            Job.store.set(turn, ended)


def _wait_for(turn: str, number: int) -> None:
    """Wait until a turn has ended; raises if it failed, or if its process shows no sign of life."""
    limit, seen = timedelta(seconds=patience()), -1
    with explained():
        while (beats := Job.store.add(f"beats/{number}", 0)) != seen:
            try:
                Job.store.wait([turn], limit)
                break
            except RuntimeError as error:
                if not is_late(error):
                    raise
                seen = beats
        else:
            raise RuntimeError("timed out")
        left = Job.store.get(turn)
        if left.startswith(DIED):
            raise RuntimeError("failed")
    if left.startswith(FAILED):
        raise TrellisError(left[1:].decode())


@contextmanager
def _beating() -> Iterator[None]:
    """A context in which this process shows the others regularly that it is alive."""
    ended = threading.Event()

    def beat() -> None:
        with suppress(RuntimeError):
            while not ended.wait(patience() / BEATS):
                Job.store.add(f"beats/{rank()}", 1)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _alone() -> Iterator[None]:
    """A context in which this process sends nothing, since the others take no part in its work."""
    before, Job.alone = Job.alone, True
    try:
        yield
    finally:
        Job.alone = before


def speaks_first() -> bool:
    """Whether this process is the first to report an error, so that a job prints only one error message."""
    if not is_joined():
        return is_first()
    try:
        return bool(Job.store.add("failed", 1) == 1)
    except RuntimeError:  # the process that kept the store has ended
        return True
