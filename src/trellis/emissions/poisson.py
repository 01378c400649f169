"""Poisson emissions: a rate per state and feature."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions.base import Emission, Vectors
from trellis.types import Potentials


class GammaPrior(NamedTuple):
    """A Gamma prior on every rate."""

    shape: Tensor
    rate: Tensor


class Poisson(Emission):
    """p(x | z) = prod_f Poisson(x_f; rates[z, f]), rates [K, F]; the statistics are expected sums of 1 and x,
    [K, 1 + F]."""

    def __init__(self, rates: Tensor, known: tuple[Tensor, Tensor] | None = None) -> None:
        self.rates, self.num_states = rates, len(rates)
        self.known = known  # counts [N, F] and the logarithm of their factorials, which do not change during EM

    @property
    def per_state(self) -> dict[str, int]:
        return {"rates": 0}

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        return Potentials(self.log_density(observations.values), observations.rows, all_observed=all_observed)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x | z): counts [N, F] -> [N, K]."""
        if self.known is None or self.known[0] is not x:
            self.known = x, torch.lgamma(x + 1).sum(-1, keepdim=True)
        total = -self.rates.sum(-1) - self.known[1]
        for feature, rates in zip(x.T, self.rates.T, strict=True):
            total = total + torch.xlogy(feature[:, None], rates)
        return total

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        return visits.T @ torch.cat([torch.ones_like(observations.values[:, :1]), observations.values], 1)

    def maximised(self, statistics: Tensor, prior: GammaPrior) -> Poisson:
        """The M-step as in hmmlearn: rates = (shape + n m) / (rate + n), where n is the number of observations in all
        states together and m is the mean of the state."""
        visits, sums = statistics[:, :1], statistics[:, 1:]
        observed = visits.sum()
        estimate = (prior.shape + observed * sums / visits) / (prior.rate + observed)
        return Poisson(torch.where(visits > 0, estimate, self.rates), self.known)

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(self.rates[states].cpu(), generator).to(states.device)
