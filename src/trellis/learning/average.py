"""An exponential moving average of the weights."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """A moving average of the weights. An update sets it to d · average + (1 − d) · weight, with
    d = min(decay, (1 + n) / (10 + n)) after n earlier updates.

    As d is small at first, the random initialisation is soon forgotten.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.averages: dict[Tensor, Tensor] = {weight: weight.detach().clone() for weight in parameters}
        kinds = {(weight.device, weight.dtype) for weight in self.averages}
        self.share = {(device, dtype): torch.ones((), dtype=dtype, device=device) for device, dtype in kinds}

    def prepare(self, updates: int) -> None:
        """Set the share of the current weights in the next update, which follows `updates` earlier ones."""
        for share in self.share.values():
            share.fill_(1 - min(self.decay, (1 + updates) / (10 + updates)))

    @torch.no_grad()
    def update(self, weights: Iterable[Tensor] | None = None) -> None:
        """Update the average with the current values of the given weights, by default all."""
        for weight in self.averages if weights is None else weights:
            self.averages[weight].lerp_(weight.detach(), self.share[weight.device, weight.dtype])

    @torch.no_grad()
    def reset(self) -> None:
        """Set the average to the current weights."""
        for weight, average in self.averages.items():
            average.copy_(weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, average in self.averages.items():
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
