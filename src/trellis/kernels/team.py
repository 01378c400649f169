"""Run compiled code on several cores, in plain threads that sleep when idle.

Each thread may use single-threaded BLAS; inside an OpenMP parallel region this would oversubscribe and busy-wait."""

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
    """The number of threads for this many items: at most as many as torch uses."""
    return max(1, min(torch.get_num_threads(), items))


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
