"""Run short kernels on a second CUDA stream, in parallel with long ones."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

Long = TypeVar("Long")
Short = TypeVar("Short")


@cache
def second_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for short kernels, with priority over the long ones of other streams."""
    return torch.cuda.Stream(device, priority=-1)


def side_by_side(
    long: Callable[[], Long], short: Callable[[Tensor], Short], given: Tensor, made: Callable[[Short], Tensor]
) -> tuple[Long, Short]:
    """(long(), short(given)). In training on a GPU, the kernels of `short` and of its gradient run on a second stream.

    `short` must use no tensors except `given` and parameters of its own. `made` extracts the tensor from the result of
    `short`."""
    if not (given.is_cuda and torch.is_grad_enabled()):
        return long(), short(given)
    first, second = torch.cuda.current_stream(given.device), second_stream(given.device)
    given = given.view_as(given)  # a parameter would get its gradient on the second stream
    second.wait_stream(first)
    with torch.cuda.stream(second):
        quick = short(given)
    given.record_stream(second)
    slow = long()
    first.wait_stream(second)
    made(quick).record_stream(first)
    return slow, quick
