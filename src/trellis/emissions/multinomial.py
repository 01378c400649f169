"""Multinomial emissions: counts of symbols, from a distribution per state."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.emissions.base import Emission, Vectors
from trellis.types import Potentials


class Multinomial(Emission):
    """p(x | z) = n! / prod_v x_v! prod_v probs[z, v]^x_v for counts x with any sum n; probs [K, V].

    The statistics are expected counts [K, V]. `trials` is the sum n of sampled counts."""

    def __init__(self, probs: Tensor, trials: int = 1) -> None:
        self.probs, self.trials, self.num_states = probs, trials, len(probs)

    @property
    def per_state(self) -> dict[str, int]:
        return {"probs": 0}

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        return Potentials(self.log_density(observations.values), observations.rows, all_observed=all_observed)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x | z): counts [N, V] -> [N, K]."""
        ways = torch.lgamma(x.sum(-1, keepdim=True) + 1) - torch.lgamma(x + 1).sum(-1, keepdim=True)
        impossible = x @ (self.probs == 0).to(x.dtype).T > 0
        chosen = x @ self.probs.where(self.probs > 0, 1.0).log().T
        return (ways + chosen).masked_fill(impossible, -torch.inf)

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        return visits.T @ observations.values

    def maximised(self, statistics: Tensor, prior: float | Tensor) -> Multinomial:
        """The M-step; a state without counts keeps its distribution."""
        return Multinomial(most_probable(statistics, prior, self.probs, keep_zeros=False), self.trials)

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        chosen = torch.multinomial(self.probs[states.flatten()].cpu(), self.trials, True, generator=generator)
        counts = torch.nn.functional.one_hot(chosen, self.probs.shape[1]).sum(-2)
        return counts.view(*states.shape, -1).to(states.device, self.probs.dtype)
