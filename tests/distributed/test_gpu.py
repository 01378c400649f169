"""Processes that train on a GPU end with the parameters of one process: by NCCL, a job of one; by gloo, a job of two on
the same GPU."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import on_gpu
import pytest
import torch
from processes import environment, free_port
from test_together import EXACT, ROUNDING

CLOSE = 1e-5  # in float32, with the same kernels
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def train(backend: str, size: int, folder: Path) -> list[dict]:
    """The parameters that each of `size` new processes learns: a process that has used a GPU cannot be forked."""
    files, port = [folder / str(rank) for rank in range(size)], free_port()
    where = [os.environ | environment(rank, size, port) | {"LOCAL_RANK": "0"} for rank in range(size)]
    command = [sys.executable, on_gpu.__file__, backend]
    jobs = [subprocess.Popen([*command, file], env=env) for file, env in zip(files, where, strict=True)]
    assert [job.wait(300) for job in jobs] == [0] * size
    return [torch.load(file) for file in files]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict:
    (found,) = train("none", 1, tmp_path_factory.mktemp("alone"))
    assert found.pop("sent") == 0
    return found


@pytest.mark.parametrize(("backend", "size"), [("nccl", 1), ("gloo", 2)])
def test_parameters_are_those_of_one_process(backend: str, size: int, alone: dict, tmp_path: Path) -> None:
    for found in train(backend, size, tmp_path):
        assert found.pop("sent") > 0
        for name, wanted in alone.items():
            if name == on_gpu.SINGLE and size > 1:
                continue  # in another order of summation, rounding is amplified by Adam
            allowed = EXACT if "em" in name else CLOSE if name == on_gpu.SINGLE else ROUNDING
            for key, value in wanted.items():
                where = functools.partial("{}, {}: {}".format, name, key)
                torch.testing.assert_close(found[name][key], value, rtol=allowed, atol=allowed, msg=where)
