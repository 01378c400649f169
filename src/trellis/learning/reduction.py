"""Gradients summed over the processes of a job."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trellis import distributed

BUCKET = 1 << 23  # bytes that are summed in one message


class Gradients:
    """Sums the gradients of weights over all processes, in buckets, while the backward pass still computes other
    gradients. If the backward pass is a CUDA graph, the gradients are summed after it. Of a weight in `touched`, only
    some rows are sent; the gradients of the others must be zero.

    All processes must compute gradients of the same weights, and send their buckets in the same order."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self.buckets: list[list[nn.Parameter]] = []
        for weight in reversed(weights) if distributed.is_joined() else ():  # gradients arrive roughly in this order
            if not self.buckets or not _fits(self.buckets[-1], weight):
                self.buckets.append([])
            self.buckets[-1].append(weight)
        self.touched: Mapping[nn.Parameter, Tensor] = {}  # the rows
        self.arrived: set[Tensor] = set()
        self.sums: list[Callable[[], None]] = []  # one for each bucket that was sent

    @contextmanager
    def arriving(self, captured: bool) -> Iterator[None]:
        """A context for a backward pass that sends complete buckets, unless the pass is captured as a graph."""
        buckets = [] if captured else self.buckets
        hooks = [weight.register_post_accumulate_grad_hook(self.arrive) for bucket in buckets for weight in bucket]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def finish(self) -> None:
        """Send the remaining buckets, and wait until the gradients are sums over all processes."""
        while len(self.sums) < len(self.buckets):
            self.send()
        for finish in self.sums:
            finish()
        self.arrived, self.sums = set(), []

    def arrive(self, weight: Tensor) -> None:
        """Record that the gradient of `weight` has been computed, and send the complete buckets, in fixed order."""
        self.arrived.add(weight)
        while len(self.sums) < len(self.buckets) and self.arrived.issuperset(self.buckets[len(self.sums)]):
            self.send()

    @torch.no_grad()
    def send(self) -> None:
        """Begin to sum the next bucket."""
        grads, rows = list[Tensor](), list[Tensor | None]()
        for weight in self.buckets[len(self.sums)]:
            if weight.grad is not None:
                grads.append(weight.grad)
                rows.append(self.touched.get(weight))
        if not grads:
            self.sums.append(lambda: None)
            return
        parts = [grad if some is None else grad[some] for grad, some in zip(grads, rows, strict=True)]
        flat = torch.cat([part.flatten() for part in parts])
        wait = distributed.begin_sum(flat)

        def finish() -> None:
            wait()
            for grad, some, part, sums in zip(grads, rows, parts, flat.split([p.numel() for p in parts]), strict=True):
                if some is None:
                    grad.copy_(sums.view_as(part))
                else:
                    grad.index_copy_(0, some, sums.view_as(part))

        self.sums.append(finish)


def _fits(bucket: list[nn.Parameter], weight: nn.Parameter) -> bool:
    size = sum(one.numel() for one in (*bucket, weight)) * weight.element_size()
    return bucket[0].dtype is weight.dtype and size <= BUCKET
