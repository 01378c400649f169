"""Poisson emissions: every state has a rate for each feature."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions.base import Emission, Vectors
from trellis.types import Potentials


class GammaPrior(NamedTuple):
    """On every rate."""

    shape: Tensor
    rate: Tensor


class Poisson(Emission):
    """p(x | z) = prod_f Poisson(x_f; rates[z, f]), rates [K, F]; its statistics are expected sums of a one and x,
    [K, 1 + F]."""

    def __init__(self, rates: Tensor) -> None:
        self.rates, self.num_states = rates, len(rates)

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        return Potentials(self.log_density(observations.values), observations.rows, all_observed=all_observed)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x | z) of counts [N, F]: -> [N, K]."""
        total = -self.rates.sum(-1) - torch.lgamma(x + 1).sum(-1, keepdim=True)
        for feature, rates in zip(x.T, self.rates.T, strict=True):
            total = total + torch.xlogy(feature[:, None], rates)
        return total

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        return visits.T @ torch.cat([torch.ones_like(observations.values[:, :1]), observations.values], 1)

    def maximised(self, statistics: Tensor, prior: GammaPrior) -> Poisson:
        """The prior weighs as much against one state as against all of them together, which is hmmlearn's estimate:
        rates = (shape + n m) / (rate + n), n observations in all, m the state's mean."""
        visits, sums = statistics[:, :1], statistics[:, 1:]
        observed = visits.sum()
        estimate = (prior.shape + observed * sums / visits) / (prior.rate + observed)
        return Poisson(torch.where(visits > 0, estimate, self.rates))

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(self.rates[states].cpu(), generator).to(states.device)
