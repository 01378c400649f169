"""Run repeated GPU work as a CUDA graph, so that hundreds of small kernels cost one launch."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Work = Callable[[Tensors, Hashable], Tensors]


class Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    given: Tensors
    made: Tensors


class Graphed:
    """Calls `work(tensors, choice)` with tensors on a device. On a GPU, work that the caller marks as `steady` is
    captured as a graph after `patience` calls with the same shapes, and then replayed. Such work must not wait for the
    device, and may keep results only by writing them in place. The graphs of all shapes share their memory, since they
    are replayed one after another."""

    def __init__(self, work: Work, device: torch.device, patience: int = 5) -> None:
        self.work, self.device, self.patience = work, device, patience
        self.seen: dict[Hashable, int] = {}
        self.captured: dict[Hashable, Captured] = {}
        self.stream: torch.cuda.Stream | None = None
        self.capturing = False
        self.pool: Any = None  # the memory of the graphs

    def __call__(self, given: Tensors, choice: Hashable, steady: bool) -> Tensors:
        if self.device.type != "cuda":
            return self.work(given, choice)
        self.stream = self.stream or torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):  # the capturing stream: autograd remembers where a weight was first used
            made = self.repeat(given, choice) if steady else self.work(self.moved(given), choice)
        torch.cuda.current_stream().wait_stream(self.stream)
        return made

    def moved(self, given: Tensors) -> Tensors:
        return {name: value.to(self.device, non_blocking=True) for name, value in given.items()}

    def repeat(self, given: Tensors, choice: Hashable) -> Tensors:
        """Run, capture or replay the work."""
        key = choice, *((name, value.shape, value.dtype) for name, value in sorted(given.items()))
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= self.patience:
            return self.work(self.moved(given), choice)
        if key not in self.captured:
            self.capturing = True
            try:
                self.captured[key] = self.capture(self.moved(given), choice)
            finally:
                self.capturing = False
        graph, inputs, made = self.captured[key]
        for name, value in given.items():
            inputs[name].copy_(value, non_blocking=True)
        graph.replay()
        return made

    def capture(self, given: Tensors, choice: Hashable) -> Captured:
        """Record the work without running it."""
        given = {name: value.clone() for name, value in given.items()}
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            made = self.work(given, choice)
        self.pool = graph.pool()
        return Captured(graph, given, made)

    def forget(self) -> None:
        """Free the captured graphs."""
        self.captured.clear()
        self.seen.clear()
        self.pool = None
