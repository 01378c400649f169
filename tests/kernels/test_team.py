"""The team of threads: all of the work, errors and limits included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from trellis.kernels import team


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["internal_api"] == "openblas"]


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


def test_the_last_caller_out_restores_the_blas() -> None:
    first, second = team.OneBlasThread(), team.OneBlasThread()
    with team.OneBlasThread():
        pass
    before = blas_threads()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert set(blas_threads()) == {1}
    second.__exit__()
    assert blas_threads() == before
