"""Random factorial HMMs for tests, and the same as one HMM over joint states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.families.factorial.loglinear import LogLinear
from trellis.families.factorial.mean_field import Chains
from trellis.testing.problems import distributions
from trellis.transitions import Kronecker
from trellis.transitions.kronecker import outer
from trellis.types import Belief, Potentials


class Layered(NamedTuple):
    """A factorial HMM in float64 and some sentences."""

    chains: Chains
    emission: LogLinear
    tokens: Tensor  # [B, T]
    lengths: Tensor  # [B]

    def joint(self) -> tuple[Belief, Kronecker, Potentials, Tensor]:
        """The HMM over joint states, as exact inference takes it."""
        start = outer([start.unsqueeze(0) for start in self.chains.starts])
        prior = Belief(start.expand(len(self.tokens), -1).contiguous())
        return prior, Kronecker(self.chains.transitions), self.emission.potentials(self.tokens), self.lengths


def layered(
    sizes: Sequence[int], words: int = 6, batch: int = 3, steps: int = 5, scale: float = 1.0, seed: int = 0,
    missing: float = 0.0,
) -> Layered:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    starts = [distributions(generator, size) for size in sizes]
    transitions = [distributions(generator, size, size) for size in sizes]
    theta = scale * torch.randn(words, sum(sizes), generator=generator, dtype=torch.float64)
    bias = torch.randn(words, generator=generator, dtype=torch.float64)
    tokens = torch.randint(words, (batch, steps), generator=generator)
    tokens[torch.rand(batch, steps, generator=generator) < missing] = -1
    lengths = torch.randint(1, steps + 1, (batch,), generator=generator)
    lengths[0] = steps
    return Layered(Chains(starts, transitions), LogLinear(theta, bias, sizes), tokens, lengths)
