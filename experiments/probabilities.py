"""The probability tables of a small HMM."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Probabilities(NamedTuple):
    """The probability tables of an HMM."""

    start: Array  # [K]
    transition: Array  # [K, K]: p(z' | z)
    emission: Array  # [K, V]: p(x | z)

    def smoothed(self, share: float) -> Probabilities:
        """Mix with uniform distributions, so that EM does not start from zeros."""
        return Probabilities(*((1 - share) * part + share / part.shape[-1] for part in self))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The arguments of `TableParams.set_probabilities`."""
        return tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in self)
