"""An exponential average of the weights: a smoother model at no cost but memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """average ← d · average + (1 − d) · weight, with d = min(decay, (1 + n) / (10 + n)) at the n-th update.

    The warm-up in d lets the average forget the random start quickly.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.averages: dict[Tensor, Tensor] = {weight: weight.detach().clone() for weight in parameters}

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Take in the present weights; `updates` were taken in before."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        for weight, average in self.averages.items():
            average.lerp_(weight, 1 - decay)

    @torch.no_grad()
    def reset(self) -> None:
        """Start again from the present weights."""
        for weight, average in self.averages.items():
            average.copy_(weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside this block the model's weights are the average."""
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
