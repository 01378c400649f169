"""Functions run in several connected processes, forked from this one, as torchrun would start them.

A process that has used a GPU cannot be forked. On such a machine, run these tests alone: `pytest tests/distributed`."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba  # noqa: F401  # imported here, once, and not in every process
import pytest
import torch
import torch._dynamo

from trellis import distributed
from trellis.progress import set_quiet

DONE = "done"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1"} | {name: str(value) for name, value in numbers.items()}


def together(size: int, work: Callable[[], Any], seconds: float = 180.0, joined: bool = True) -> list[Any]:
    """What `work` returns, or the exception it raises, in each of `size` processes, connected if `joined`."""
    if torch.cuda.is_initialized():
        pytest.skip("this process has used a GPU, so it cannot be forked; run tests/distributed alone")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        where = [environment(rank, size, port) | {"TRELLIS_TIMEOUT": str(seconds)} for rank in range(size)]
        children = [start(Path(folder), one, work, joined) for one in where]
        for child in children[1:]:
            os.waitpid(child, 0)
        (Path(folder) / DONE).touch()
        os.waitpid(children[0], 0)
        found = [Path(folder) / str(rank) for rank in range(size)]
        return [pickle.loads(path.read_bytes()) if path.exists() else None for path in found]


def start(folder: Path, numbers: dict[str, str], work: Callable[[], Any], joined: bool) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update(numbers)
    torch.cuda.is_available = lambda: False  # a GPU cannot be used after a fork
    set_quiet()
    try:
        if joined:
            distributed.join()
        result = work()
    except BaseException as error:
        result = error
    (folder / numbers["RANK"]).write_bytes(pickle.dumps(result))
    while numbers["RANK"] == "0" and not (folder / DONE).exists():  # the first process keeps the store of all
        time.sleep(0.01)
    os._exit(0)
