"""Poisson emissions: a rate per state and feature."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions.base import Emission, Vectors
from trellis.types import Potentials


class GammaPrior(NamedTuple):
    """A gamma prior of every rate."""

    shape: Tensor
    rate: Tensor


class Known(NamedTuple):
    """Quantities computed from the observations alone, which do not change during EM."""

    counts: Tensor  # [N, F]
    with_ones: Tensor  # a column of ones, then the counts: [N, 1 + F]
    log_factorials: Tensor  # summed over features: [N, 1]

    @classmethod
    def of(cls, x: Tensor) -> Known:
        return cls(x, torch.cat([torch.ones_like(x[:, :1]), x], 1), torch.lgamma(x + 1).sum(-1, keepdim=True))


class Poisson(Emission):
    """p(x | z) = prod_f Poisson(x_f; rates[z, f]), rates [K, F]; the statistics are expected sums of 1 and x,
    [K, 1 + F]."""

    def __init__(self, rates: Tensor, known: Known | None = None) -> None:
        self.rates, self.num_states = rates, len(rates)
        self.known = known

    @property
    def per_state(self) -> dict[str, int]:
        return {"rates": 0}

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        return Potentials(self.log_density(observations.values), observations.rows, all_observed=all_observed)

    def known_of(self, x: Tensor) -> Known:
        if self.known is None or self.known.counts is not x:
            self.known = Known.of(x)
        return self.known

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x | z): counts [N, F] -> [N, K]."""
        known = self.known_of(x)
        if not self.rates.is_cuda and bool(self.rates.all()):
            weights = torch.cat([-self.rates.sum(-1, keepdim=True), self.rates.log()], 1)
            return product(known.with_ones, weights.T) - known.log_factorials
        total = -self.rates.sum(-1) - known.log_factorials
        for feature, rates in zip(x.T, self.rates.T, strict=True):
            total = total + torch.xlogy(feature[:, None], rates)
        return total

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        return product(visits.T, self.known_of(observations.values).with_ones)

    def maximised(self, statistics: Tensor, prior: GammaPrior) -> Poisson:
        """The M-step as in hmmlearn: rates = (shape + n m) / (rate + n), where n is the number of observations in all
        states together and m is the mean of the state."""
        visits, sums = statistics[:, :1], statistics[:, 1:]
        observed = visits.sum()
        estimate = (prior.shape + observed * sums / visits) / (prior.rate + observed)
        return Poisson(torch.where(visits > 0, estimate, self.rates), self.known)

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(self.rates[states].cpu(), generator).to(states.device)


def product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product. On a CPU it is NumPy's, which wakes no other threads for small matrices."""
    if a.is_cuda or a.requires_grad or b.requires_grad:
        return a @ b
    return torch.from_numpy(a.numpy() @ b.numpy())
