"""Run compiled code on several cores, in plain threads that sleep when idle.

Each thread may use single-threaded BLAS; inside an OpenMP parallel region this would oversubscribe and busy-wait.
Torch's own threads are OpenMP threads, which wait for each other in busy loops: on a busy machine an operation on a few
thousand numbers costs milliseconds of every core. `one_torch_thread` keeps small operations away from them."""

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

SMALL = 1 << 20  # numbers


class Outside(threading.local):
    """The number of torch's threads outside `one_torch_thread`; 0 if the calling thread is not inside."""

    threads = 0


outside = Outside()


def threads() -> int:
    """The number of threads that torch may use, inside `one_torch_thread` too."""
    return outside.threads or torch.get_num_threads()


def size(items: int) -> int:
    """The number of threads for this many items: at most as many as torch uses."""
    return max(1, min(threads(), items))


def worth_one(*tables: torch.Tensor) -> bool:
    """Whether operations on tables are so small that torch needs only one thread; without numba, it does more."""
    return compiles() and all(table.device.type == "cpu" and table.numel() <= SMALL for table in tables)


@cache
def compiles() -> bool:
    """Whether kernels can be compiled; does not import numba."""
    return find_spec("numba") is not None


@contextmanager
def one_torch_thread(wanted: bool = True) -> Iterator[None]:
    """A context in which torch works on the calling thread alone; `share` has as many threads as before."""
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    outside.threads = before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        outside.threads = 0
        torch.set_num_threads(before)


def share(work: Callable[..., None], workers: int, *arguments: Any) -> None:
    """Call work(worker, workers, *arguments) for each worker in parallel; `work` must release the GIL."""
    if workers == 1:
        work(0, 1, *arguments)
        return
    pool = _pool(os.getpid(), workers)
    for done in [pool.submit(work, worker, workers, *arguments) for worker in range(workers)]:
        done.result()


class OneBlasThread:
    """A context in which BLAS is single-threaded; the last one to exit restores the previous setting."""

    lock, inside, limit = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self.lock:
            if OneBlasThread.inside == 0:
                OneBlasThread.limit = _blas().limit(limits=1, user_api="blas")
            OneBlasThread.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            OneBlasThread.inside -= 1
            if OneBlasThread.inside == 0 and OneBlasThread.limit is not None:
                OneBlasThread.limit.restore_original_limits()


@cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "trellis")


@cache
def _blas() -> ThreadpoolController:
    importlib.import_module("scipy.linalg.cython_blas")  # numba's BLAS: it must be loaded to be limited
    return ThreadpoolController()


def _after_fork() -> None:
    """In a forked process: torch's threads do not exist, so it would wait for them for ever; locks are released."""
    outside.threads = 0
    torch.set_num_threads(1)
    OneBlasThread.lock, OneBlasThread.inside = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
