"""Variational Bayes for HMMs (MacKay 1997, Beal 2003): posteriors over the parameters instead of point estimates.

The E-step is the E-step of EM with the weights exp E[log p] in place of the probabilities p; the rows of these weights
sum to less than one. The M-step adds expected counts to the prior.
The lower bound on the log evidence is the log-likelihood of the E-step minus the divergences from the prior.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trellis.dirichlet import divergence, expected_log
from trellis.parts import Parts, Prior
from trellis.transitions import Dense
from trellis.types import Counts


class VariationalParts(Parts):
    """Dirichlet posteriors and priors of the start [K] and the transitions [K, K], and an emission with a posterior and
    a prior."""

    def __init__(self, start: Tensor, transition: Tensor, emission: Any, priors: tuple[Tensor, Tensor]) -> None:
        self.logs = expected_log(start), expected_log(transition)
        super().__init__(self.logs[0].exp(), Dense(self.logs[1].exp()), emission)
        self.posteriors, self.priors = (start, transition), priors

    def bound(self) -> float:
        """The lower bound on the log evidence, minus the log-likelihood of the E-step."""
        apart = [divergence(*each).sum() for each in zip(self.posteriors, self.priors, self.logs, strict=True)]
        return -float(sum(apart) + self.emission.divergence())

    def maximised(self, counts: Counts, prior: Prior, consume: bool = False) -> VariationalParts:
        """The updated posteriors. Where `prior` is None, the posterior is kept."""
        fields = zip(self.posteriors, self.priors, prior[:2], (counts.start, counts.transition), strict=True)
        start, transition = (old if given is None else own + count for old, own, given, count in fields)
        emission = self.emission if prior.emission is None else self.emission.maximised(counts.emission, None)
        return VariationalParts(start, transition, emission, self.priors)

    def mean(self) -> Parts:
        """The posterior mean of all parameters."""
        start, transition = (posterior / posterior.sum(-1, keepdim=True) for posterior in self.posteriors)
        return Parts(start, Dense(transition), self.emission.mean())
