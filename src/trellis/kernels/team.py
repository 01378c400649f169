"""Run compiled code on several cores, in plain threads that sleep when idle.

Each of these threads may call single-threaded BLAS. With OpenMP threads, there would be more threads than cores, and
idle threads would keep their core busy."""

import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

GRAIN = 1 << 15  # numbers that torch gives to each thread of an operation


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
    """A context in which BLAS is single-threaded. If several threads are in it, the last one to leave restores the
    previous setting."""

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


def shorten_waits() -> None:
    """Let torch's idle threads sleep almost at once, even if it is too late to set OMP_WAIT_POLICY.

    GNU OpenMP reads OMP_WAIT_POLICY when it is loaded. By default, its threads wait for work in a loop of 300,000
    rounds, which costs milliseconds of every core per operation on a busy machine. If there are more threads than CPUs,
    the loop has only 1,000 rounds (see GOMP_SPINCOUNT in the manual of GNU OpenMP). This function starts more threads
    than CPUs, which never work again."""
    threads, cpus, ready = torch.get_num_threads(), os.cpu_count() or 1, threading.Event()

    def idle() -> None:
        torch.set_num_threads(cpus + 1)
        torch.zeros((cpus + 1) * GRAIN).add_(1)
        torch.set_num_threads(threads)
        ready.set()
        threading.Event().wait()  # the team exists as long as this thread

    if threads > 1:
        threading.Thread(target=idle, name="trellis-idle", daemon=True).start()
        ready.wait()


def _after_fork() -> None:
    """Reset the state of threads in a forked process. Otherwise, torch would wait for threads that do not exist there,
    and nobody would release the lock."""
    torch.set_num_threads(1)
    OneBlasThread.lock, OneBlasThread.inside = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
