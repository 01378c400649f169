"""Poisson emissions: every state has a rate for each feature."""

from __future__ import annotations

import torch
from torch import Tensor


class Poisson:
    """p(x | z) = prod_f Poisson(x_f; rates[z, f]), rates [K, F]."""

    def __init__(self, rates: Tensor) -> None:
        self.rates = rates

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x | z) of counts [N, F]: -> [N, K]."""
        total = -self.rates.sum(-1) - torch.lgamma(x + 1).sum(-1, keepdim=True)
        for feature, rates in zip(x.T, self.rates.T, strict=True):
            total = total + torch.xlogy(feature[:, None], rates)
        return total

    @staticmethod
    def features(x: Tensor) -> Tensor:
        """What the M-step needs to know of x [N, F]: a one and x itself, [N, 1 + F]."""
        return torch.cat([torch.ones_like(x[:, :1]), x], 1)

    def maximise(self, statistics: Tensor, shape: Tensor, rate: Tensor) -> Poisson:
        """The M-step from expected features [K, 1 + F] with a Gamma(shape, rate) prior on every rate.

        The prior weighs as much against one state as against all of them together, which is hmmlearn's estimate:
        rates = (shape + n m) / (rate + n), n observations in all, m the state's mean."""
        visits, sums = statistics[:, :1], statistics[:, 1:]
        observed = visits.sum()
        estimate = (shape + observed * sums / visits) / (rate + observed)
        return Poisson(torch.where(visits > 0, estimate, self.rates))
