"""An emission for angles: each state has a mean direction and a concentration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.special import i0e, i1e

from trellis.emissions import Emission, Vectors
from trellis.types import Potentials

STEPS = 30  # of Newton's method
LONGEST = 1 - 1e-9  # upper limit of the mean resultant length


class VonMises(Emission):
    """p(x | z) = exp(kappa_z cos(x - mu_z)) / (2 pi I_0(kappa_z)) for angles x [n, 1], with means mu and kappas [K].

    The sufficient statistics are expected sums of 1, cos x and sin x: [K, 3]."""

    def __init__(self, means: Tensor, kappas: Tensor) -> None:
        self.means, self.kappas, self.num_states = means, kappas, len(means)

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        log_norms = i0e(self.kappas).log() + self.kappas + math.log(2 * math.pi)
        table = self.kappas * torch.cos(observations.values - self.means) - log_norms  # [n, K]
        return Potentials(table, observations.rows, all_observed=all_observed)

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        x = observations.values
        return visits.T @ torch.cat([torch.ones_like(x), x.cos(), x.sin()], 1)

    def maximised(self, statistics: Tensor, prior: Any) -> VonMises:
        """The M-step, without a prior. States without expected counts keep their parameters."""
        count, cos, sin = statistics.T
        resultant = (torch.hypot(cos, sin) / count.clamp(min=1e-300)).clamp(max=LONGEST)
        seen = count > 0
        means = torch.where(seen, torch.atan2(sin, cos), self.means)
        return VonMises(means, torch.where(seen, concentration(resultant), self.kappas))

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        seed = int(torch.randint(1 << 62, (), generator=generator))
        drawn = np.random.default_rng(seed).vonmises(self.means[states].numpy(), self.kappas[states].numpy())
        return torch.from_numpy(np.asarray(drawn)).unsqueeze(-1)


def concentration(resultant: Tensor) -> Tensor:
    """The kappa for which I_1(kappa) / I_0(kappa) equals the mean resultant length, by Newton's method."""
    kappa = resultant * (2 - resultant**2) / (1 - resultant**2)
    for _ in range(STEPS):
        ratio = i1e(kappa) / i0e(kappa)
        slope = 1 - ratio / kappa.clamp(min=1e-12) - ratio**2
        kappa = (kappa - (ratio - resultant) / slope.clamp(min=1e-12)).clamp(min=0)
    return kappa
