"""The team of threads: all of the work, errors and limits included."""

from __future__ import annotations

import os
import subprocess
import sys

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


IDLE = """
{first}
import threading
import trellis, torch
from trellis.kernels import team
counts = [torch.get_num_threads()]
new = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
new.start()
new.join()
print(counts, sum(thread.name == "trellis-idle" for thread in threading.enumerate()))
"""


@pytest.mark.parametrize(
    ("first", "settings", "idle"),
    [
        ("import torch; torch.set_num_threads(2)", {}, 1),
        ("import torch; torch.set_num_threads(2)", {"OMP_WAIT_POLICY": "ACTIVE"}, 0),  # the user's choice
        ("import trellis, torch; torch.set_num_threads(2)", {}, 0),  # OMP_WAIT_POLICY is set in time
    ],
)
def test_waits_are_shortened_if_torch_was_imported_first(first: str, settings: dict[str, str], idle: int) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    program = [sys.executable, "-c", IDLE.format(first=first)]
    done = subprocess.run(program, env=environment | settings, capture_output=True, text=True, check=True)
    assert done.stdout == f"[2, 2] {idle}\n"


def test_a_team_that_idles_has_more_threads_than_there_are_cpus() -> None:
    tasks = "/proc/self/task"
    if not os.path.isdir(tasks):
        pytest.skip("this system does not list the threads of a process")
    program = f"import os, torch; torch.set_num_threads(2); before = len(os.listdir('{tasks}'))\n"
    program += f"import trellis; print(len(os.listdir('{tasks}')) - before > os.cpu_count())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
