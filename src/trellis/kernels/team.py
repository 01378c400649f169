"""Compiled code on several cores: plain threads, which sleep when there is nothing to do.

Each of them may use a BLAS of one thread; inside a parallel region of OpenMP that would quarrel, and wait busily."""

import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController


def size(items: int) -> int:
    """How many threads share so many items: no more than torch uses."""
    return max(1, min(torch.get_num_threads(), items))


def share(work: Callable[..., None], workers: int, *arguments: Any) -> None:
    """Call work(worker, workers, *arguments) for each worker, side by side; `work` must let go of the GIL."""
    if workers == 1:
        work(0, 1, *arguments)
        return
    pool = _pool(os.getpid(), workers)
    for done in [pool.submit(work, worker, workers, *arguments) for worker in range(workers)]:
        done.result()


class OneBlasThread:
    """A context in which each caller's BLAS runs on the caller's own thread; the last one out restores the rest."""

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
    importlib.import_module("scipy.linalg.cython_blas")  # numba's BLAS: a library not loaded yet cannot be limited
    return ThreadpoolController()
