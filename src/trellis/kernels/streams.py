"""Work that a GPU does beside other work."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

Long = TypeVar("Long")
Short = TypeVar("Short")


@cache
def second_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for short kernels: they go before the long ones of other streams."""
    return torch.cuda.Stream(device, priority=-1)


def side_by_side(
    long: Callable[[], Long], short: Callable[[], Short], given: Tensor, made: Callable[[Short], Tensor]
) -> tuple[Long, Short]:
    """(long(), short()). On a GPU, the kernels of `short` and of its gradient run on a second stream. `given` is the
    tensor that it uses, parameters apart; `made` returns the tensor in its result."""
    if not (given.is_cuda and torch.cuda.is_available()):
        return long(), short()
    first, second = torch.cuda.current_stream(given.device), second_stream(given.device)
    second.wait_stream(first)
    with torch.cuda.stream(second):
        quick = short()
    given.record_stream(second)
    slow = long()
    first.wait_stream(second)
    made(quick).record_stream(first)
    return slow, quick
