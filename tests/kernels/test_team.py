"""The team of threads: all of the work, errors and limits included."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from trellis.kernels import team


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_every_worker_works() -> None:
    done = np.zeros(5)

    def work(worker: int, workers: int) -> None:
        done[worker::workers] += 1

    for workers in (1, 2, 5):
        team.share(work, workers)
    assert done.tolist() == [3.0] * 5


def test_an_error_reaches_the_caller() -> None:
    def work(worker: int, workers: int) -> None:
        raise ValueError(worker)

    with pytest.raises(ValueError, match="0"):
        team.share(work, 2)


def test_the_team_is_no_larger_than_torch_or_the_work() -> None:
    assert team.size(0) == team.size(1) == 1
    assert team.size(10**9) == torch.get_num_threads()


def test_callers_side_by_side_restore_the_blas() -> None:
    with team.OneBlasThread():
        assert set(blas_threads()) == {1}
    before = blas_threads()
    inside = threading.Barrier(2)

    def call(waits: int) -> None:
        with team.OneBlasThread():
            inside.wait()
            for _ in range(waits):
                assert set(blas_threads()) == {1}

    threads = [threading.Thread(target=call, args=(waits,)) for waits in (1, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blas_threads() == before
