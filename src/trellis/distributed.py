"""One job in several processes, as torchrun starts them. In a single process every function here does nothing.

Rows of a batch are divided among the processes in order. Sums are taken over all processes, so that each process has
the same parameters after every step. Only the first process (rank 0) writes.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from trellis.errors import TrellisError

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = "TRELLIS_TIMEOUT"  # seconds that a process waits for the others
PATIENCE = 600.0  # its default
PREPARING = timedelta(days=1)  # limit of work that one process of a machine does for all of them
DENSE = 0.5  # share of nonzero rows above which a tensor is sent whole
FEW_ROWS = 64  # rows below which it is sent whole

A = TypeVar("A")


class _Job:
    """What this process knows of its job: the messages it has sent, in bytes, and whether it is inside a step, or works
    alone while the others wait."""

    sent = 0
    in_step = alone = False


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", 0)) if size() > 1 else 0


def size() -> int:
    """The number of processes of this job."""
    given = os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"
    return int(given) if given.isdecimal() else 1


def local_rank() -> int:
    """The number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", rank()))


def is_first() -> bool:
    """Whether this is the process that writes."""
    return rank() == 0


def attempt() -> str:
    """How often torchrun has restarted the processes of this job after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def was_restarted() -> bool:
    return size() > 1 and attempt() != "0"


def job() -> str:
    """An identifier shared by all attempts of a job: the name of the job, and the torchrun that started this
    process."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {os.getppid()}"


def is_joined() -> bool:
    """Whether the processes of this job are connected and this process is not working alone."""
    if size() == 1 or _Job.alone:
        return False
    import torch.distributed as dist

    return dist.is_initialized()


def join() -> None:
    """Connect the processes of this job until they end: CPUs by gloo, GPUs by NCCL."""
    if size() == 1 or _Job.alone or is_joined():
        return
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    if on_gpu:
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    limit = timedelta(seconds=patience())
    with _explained():
        store, number, count = next(dist.rendezvous("env://", timeout=limit))
        store = dist.PrefixStore(f"trellis/{attempt()}", store)  # torchrun keeps the addresses of earlier attempts
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=limit)
    atexit.register(dist.destroy_process_group)


def patience() -> float:
    """The seconds that a process waits for the others."""
    given = os.environ.get(TIMEOUT, str(PATIENCE))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise TrellisError(f"{TIMEOUT} is {given!r}: set it to a number of seconds.")
    return seconds


@contextmanager
def _explained() -> Iterator[None]:
    """Turn an error of communication into one sentence."""
    try:
        yield
    except RuntimeError as error:
        late = "imed out" in str(error) or "imeout" in str(error)
        what = f"did not answer for {patience():g} seconds ({TIMEOUT})" if late else "has ended"
        raise TrellisError(
            f"Another process of this job {what}; continue from the last checkpoint with --resume."
        ) from error


@contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """A context that the first process of each machine enters and leaves before the others enter it. They then find its
    results in the cache."""
    if not is_joined():
        yield
        return
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    machine = (rank() - local_rank()) if "LOCAL_RANK" in os.environ else 0
    key = f"{what}/{machine}"
    if rank() != machine:
        with _explained():
            store.wait([key], PREPARING)
    try:
        yield
    finally:
        store.set(key, "done")


def speaks_first() -> bool:
    """Whether this process is the first to report an error, so that each job prints only one sentence."""
    if not is_joined():
        return is_first()
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    try:
        return bool(store.add("failed", 1) == 1)
    except RuntimeError:  # the process that kept the store has ended
        return True


@contextmanager
def _alone() -> Iterator[None]:
    """A context in which this process sends nothing, since the others take no part in its work."""
    before, _Job.alone = _Job.alone, True
    try:
        yield
    finally:
        _Job.alone = before


def from_first(make: Callable[[], A]) -> A:
    """Call `make` in the first process alone, and send its result to all processes."""
    if not is_joined():
        return make()
    import torch.distributed as dist

    made: list[Any] = [None]
    if is_first():
        try:
            with _alone():
                made = [make()]
        except TrellisError as error:
            made = [error]
    with _explained():
        dist.broadcast_object_list(made, device="cpu")  # type: ignore[arg-type]
    if isinstance(made[0], TrellisError):
        raise made[0]
    return made[0]


def from_all(value: A) -> list[A]:
    """The values of all processes, in order."""
    if not is_joined():
        return [value]
    import torch.distributed as dist

    found: list[Any] = [None] * size()
    with _explained():
        dist.all_gather_object(found, value)
    return found


def largest(*values: float) -> tuple[float, ...]:
    """The maximum of each value over all processes."""
    if not is_joined():
        return values
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(values, dtype=torch.float64)
    with _explained():
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tuple(tensor.tolist())


def add_up(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, in place."""
    if is_joined():
        import torch.distributed as dist

        _Job.sent += tensor.numel() * tensor.element_size()
        with _explained():
            dist.all_reduce(tensor)
    return tensor


def begin_sum(tensor: Tensor) -> Callable[[], Any]:
    """Begin to add up a tensor over all processes, in place; returns a function that waits for the sum."""
    import torch.distributed as dist

    _Job.sent += tensor.numel() * tensor.element_size()
    with _explained():
        work = dist.all_reduce(tensor, async_op=True)

    def wait() -> None:
        with _explained():
            work.wait()

    return wait


def add_up_rows(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes; only the rows that are nonzero in some process are sent."""
    if not is_joined() or tensor.dim() < 2 or len(tensor) < FEW_ROWS:
        return add_up(tensor)
    import torch
    import torch.distributed as dist

    touched = tensor.flatten(1).any(1).to(torch.uint8)
    _Job.sent += touched.numel()
    with _explained():
        dist.all_reduce(touched, dist.ReduceOp.MAX)
    rows = touched.nonzero().squeeze(1)
    if len(rows) > DENSE * len(tensor):
        return add_up(tensor)
    tensor[rows] = add_up(tensor[rows])
    return tensor


def bytes_sent() -> int:
    """The number of bytes of all sums in which this process has taken part so far."""
    return _Job.sent


def share_of(count: int, number: int | None = None) -> slice:
    """The part of `count` items that belongs to a process, by default this one. Sizes differ by at most one, and the
    first process has the largest."""
    number = rank() if number is None else number
    whole, rest = divmod(count, size())
    begin = number * whole + min(number, rest)
    return slice(begin, begin + whole + (number < rest))


@contextmanager
def stepping() -> Iterator[None]:
    """A context in which all processes take the same training step, and may therefore share its work."""
    before, _Job.in_step = _Job.in_step, is_joined()
    try:
        yield
    finally:
        _Job.in_step = before


def is_stepping() -> bool:
    return _Job.in_step
