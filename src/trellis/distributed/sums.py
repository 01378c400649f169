"""Sums and other values over all processes of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from trellis.distributed.job import Job, explained, is_joined, size

if TYPE_CHECKING:
    from torch import Tensor

DENSE = 0.5  # share of nonzero rows above which a tensor is sent whole
FEW_ROWS = 64  # a tensor with fewer rows is sent whole

A = TypeVar("A")


def from_all(value: A) -> list[A]:
    """Collect the values of all processes, in the order of the processes."""
    if not is_joined():
        return [value]
    import torch.distributed as dist

    found: list[Any] = [None] * size()
    with explained():
        dist.all_gather_object(found, value, group=Job.group)
    return found


def largest(*values: float) -> tuple[float, ...]:
    """The maximum of each value over all processes."""
    if not is_joined():
        return values
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(values, dtype=torch.float64)
    with explained():
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=Job.group)
    return tuple(tensor.tolist())


def add_up(tensor: Tensor) -> Tensor:
    """Add up a tensor over all processes, in place, and return it."""
    if is_joined():
        Job.sums_in_step |= Job.in_step
        begin_sum(tensor)()
    return tensor


def begin_sum(tensor: Tensor) -> Callable[[], Any]:
    """Begin to add up a tensor over all processes, in place; returns a function that waits for the sum."""
    import torch.distributed as dist

    Job.sent += tensor.numel() * tensor.element_size()
    with explained():
        work = dist.all_reduce(tensor, group=Job.group, async_op=True)

    def wait() -> None:
        with explained():
            work.wait()

    return wait


def add_up_rows(tensor: Tensor) -> Tensor:
    """Like `add_up`, but only the rows that are nonzero in some process are sent."""
    if not is_joined() or tensor.dim() < 2 or len(tensor) < FEW_ROWS:
        return add_up(tensor)
    import torch
    import torch.distributed as dist

    flat = tensor.flatten(1)
    touched = ((flat.amax(1) != 0) | (flat.amin(1) != 0)).to(torch.uint8)  # several times as fast as any(1)
    Job.sent += touched.numel()
    with explained():
        dist.all_reduce(touched, dist.ReduceOp.MAX, group=Job.group)
    rows = touched.nonzero().squeeze(1)
    if len(rows) > DENSE * len(tensor):
        return add_up(tensor)
    return tensor.index_copy_(0, rows, add_up(tensor.index_select(0, rows)))


def bytes_sent() -> int:
    """The number of bytes of all sums in which this process has taken part so far."""
    return Job.sent
