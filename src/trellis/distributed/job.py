"""The number of this process in its job, and its connection to the other processes."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from trellis.errors import TrellisError

TIMEOUT = "TRELLIS_TIMEOUT"  # seconds that a process waits for the others
PATIENCE = 600.0  # its default
RENDEZVOUS = "MASTER_ADDR", "MASTER_PORT"  # where the processes of a job meet
LAUNCH = "start the processes with torchrun, or unset RANK and WORLD_SIZE"


class Job:
    """What this process knows about its job."""

    rank, size = 0, 1
    group: Any = None  # torch's process group, once the processes are connected
    store: Any = None  # torch's key-value store, which they share
    sent = 0  # bytes of the sums that this process has taken part in
    turns = 0  # times that the processes have waited for the first of their machine
    in_step = False  # whether all processes are inside the same training step
    sums_in_step = False  # whether training steps have taken sums, other than those of gradients
    alone = False  # whether this process works while the others wait


def declare() -> None:
    """Make this process part of a job if torchrun has started it, that is, if RANK and WORLD_SIZE are set."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return
    number, count = _whole("RANK"), _whole("WORLD_SIZE")
    if count > 1 and (missing := [name for name in RENDEZVOUS if not os.environ.get(name)]):
        raise TrellisError(f"RANK and WORLD_SIZE are set without {' and '.join(missing)}: {LAUNCH}.")
    if number >= count:
        raise TrellisError(f"RANK is {number}, but WORLD_SIZE is {count}: {LAUNCH}.")
    Job.rank, Job.size = number, count


def _whole(name: str) -> int:
    given = os.environ[name]
    if not given.isdecimal():
        raise TrellisError(f"{name} is {given!r}, not a number of processes: {LAUNCH}.")
    return int(given)


def join() -> None:
    """Make this process part of a job, and connect it to the other processes of the job. These are the processes that
    torchrun has started, or those that the program itself has connected by `torch.distributed.init_process_group`. All
    processes must call `join`."""
    import torch.distributed as dist

    if dist.is_initialized() and Job.group is None:
        Job.rank, Job.size = dist.get_rank(), dist.get_world_size()
    else:
        declare()
    connect()


def connect() -> None:
    """Connect the processes of this job until they end, by gloo on CPUs and by NCCL on GPUs.

    The job has a process group of its own, so a program may use torch.distributed for itself too."""
    if Job.size == 1 or Job.alone or Job.group is not None:
        return
    import torch
    import torch.distributed as dist
    import torch.distributed.nn.functional  # it would keep a group that exists when it is imported, and its threads

    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    limit, backend = timedelta(seconds=patience()), "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    with explained():
        if dist.is_initialized():
            Job.group = dist.new_group(backend=backend, timeout=limit)
            Job.store = dist.PrefixStore("trellis", dist.distributed_c10d._get_default_store())
            atexit.register(forget)
            return
        if on_gpu:
            torch.cuda.set_device(local_rank() % torch.cuda.device_count())
        store, number, count = next(dist.rendezvous("env://", timeout=limit))
        Job.store = dist.PrefixStore(f"trellis/{attempt()}", store)  # torchrun keeps the addresses of earlier attempts
        dist.init_process_group(backend, store=Job.store, rank=number, world_size=count, timeout=limit)
        Job.group = dist.group.WORLD
    atexit.register(disconnect)


def disconnect() -> None:
    """End the connection, with its threads: a thread that outlives the interpreter can abort the process."""
    import torch.distributed as dist

    Job.group = Job.store = None
    if dist.is_initialized():
        dist.destroy_process_group()


def forget() -> None:
    """Let go of a connection that the program ends itself: its threads end with the last reference."""
    Job.group = Job.store = None


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error of communication into one sentence."""
    try:
        yield
    except RuntimeError as error:
        what = f"did not answer for {patience():g} seconds ({TIMEOUT})" if is_late(error) else "has ended"
        raise TrellisError(
            f"Another process of this job {what}; continue from the last checkpoint with --resume."
        ) from error


def is_late(error: RuntimeError) -> bool:
    """Whether an error of communication is a time-out."""
    return "imed out" in str(error) or "imeout" in str(error)


def patience() -> float:
    """The number of seconds that a process waits for the other processes."""
    given = os.environ.get(TIMEOUT, str(PATIENCE))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise TrellisError(f"{TIMEOUT} is {given!r}: set it to a positive number of seconds.")
    return seconds


def rank() -> int:
    """The number of this process, from 0."""
    return Job.rank


def size() -> int:
    """The number of processes of this job."""
    return Job.size


def local_rank() -> int:
    """The number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", rank()))


def is_first() -> bool:
    """Whether this is the process that writes."""
    return rank() == 0


def is_joined() -> bool:
    """Whether the processes of this job are connected and this process is not working alone."""
    return Job.group is not None and not Job.alone


def attempt() -> str:
    """How often torchrun has restarted the processes of this job after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def was_restarted() -> bool:
    return size() > 1 and attempt() != "0"


def job() -> str:
    """An identifier shared by all attempts of a job: the name of the job, and the torchrun that started this
    process."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {os.getppid()}"


def share_of(count: int, number: int | None = None) -> slice:
    """The part of `count` items that belongs to a process, by default this one. The sizes of the parts differ
    by at most one, and earlier processes have the larger parts."""
    number = rank() if number is None else number
    whole, rest = divmod(count, size())
    begin = number * whole + min(number, rest)
    return slice(begin, begin + whole + (number < rest))


@contextmanager
def stepping() -> Iterator[None]:
    """A context in which all processes take the same training step, and may therefore share its work."""
    before, Job.in_step = Job.in_step, is_joined()
    try:
        yield
    finally:
        Job.in_step = before


def is_stepping() -> bool:
    return Job.in_step


def sums_within_steps() -> bool:
    """Whether a training step has shared work among the processes, so that it cannot be captured as a CUDA graph."""
    return Job.sums_in_step
