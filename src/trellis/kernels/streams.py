"""Work that a GPU does beside other work."""

from __future__ import annotations

from functools import cache
from typing import Any, Self

import torch
from torch import Tensor


@cache
def second_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for short kernels: they go before the long ones of other streams."""
    return torch.cuda.Stream(device, priority=-1)


class Beside:
    """A context whose work, and its gradient, a GPU does beside the work that follows it, until `join`; on a CPU it is
    done in order. `given` are the tensors that it uses, parameters apart."""

    def __init__(self, *given: Tensor) -> None:
        self.given, self.on_gpu = given, given[0].is_cuda

    def __enter__(self) -> Self:
        if self.on_gpu:
            self.first, self.second = torch.cuda.current_stream(), second_stream(self.given[0].device)
            self.second.wait_stream(self.first)
            self.inside = torch.cuda.stream(self.second)
            self.inside.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        if self.on_gpu:
            self.inside.__exit__(*raised)
            for tensor in self.given:
                tensor.record_stream(self.second)

    def join(self, made: Tensor) -> None:
        """Wait for the work, which made this tensor."""
        if self.on_gpu:
            self.first.wait_stream(self.second)
            made.record_stream(self.first)
