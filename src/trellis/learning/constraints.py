"""M-steps under constraints: transitions and emissions that are tied or frozen. All M-steps are exact.

Starts and transitions of probability zero need no constraint: EM keeps them at zero (`trellis.dirichlet`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trellis.emissions import Emission
from trellis.parts import Parts, Prior
from trellis.transitions import Dense
from trellis.types import Counts


class TiedRows(NamedTuple):
    """Transitions that are tied or frozen. Transitions with the same label have the same probability.

    If two rows have a label in common, both have the same set of labels, each equally often."""

    labels: Tensor  # [K, K] int64, each less than K * K
    repeats: Tensor  # [K, K] float: how often the label occurs among the trained entries of its row, at least 1
    frozen: Tensor  # [K, K] bool

    def maximised(self, counts: Tensor, pseudocount: float | Tensor, old: Tensor) -> Tensor:
        """The transition matrix A [K, K] that maximises the sum of (counts + pseudocount) log A under the ties.

        Let C be the sum of (counts + pseudocount) over all entries with some label, which occurs m times in a row. Then
        A = mass C / (m sum of C over the row's labels), where the mass is the probability that frozen entries leave."""
        trained = (old > 0) & ~self.frozen
        weights = ((counts + pseudocount).clamp(min=0) * trained).flatten()
        totals = torch.zeros_like(weights).index_add(0, self.labels.flatten(), weights)
        shares = totals[self.labels] * trained / self.repeats
        sums, mass = shares.sum(-1, keepdim=True), 1 - (old * self.frozen).sum(-1, keepdim=True)
        return torch.where(trained & (sums > 0), mass * shares / sums, old)


class TiedStates(NamedTuple):
    """States that share an emission, and states whose emission is frozen."""

    first: Tensor  # [K] int64: the first state with the same emission
    frozen: Tensor  # [K] bool

    def maximised(self, emission: Emission, statistics: Tensor, prior: Any) -> Emission:
        """The M-step. The statistics of tied states are added up for the first of these states; the others copy its
        emission."""
        axis = emission.statistics_axis
        pooled = torch.zeros_like(statistics).index_add(axis, self.first, statistics)
        return emission.maximised(pooled, prior).take(self.first).keeping(self.frozen, emission)


class Constraints(NamedTuple):
    """The constraints on the transitions and on the emissions of a model; None means that there are none."""

    rows: TiedRows | None = None
    states: TiedStates | None = None

    def maximised(self, parts: Parts, counts: Counts, prior: Prior) -> Parts:
        """The M-step of all components."""
        moves, emits = prior.transition, prior.emission
        free = Prior(prior.start, None if self.rows else moves, None if self.states else emits)
        start, transition, emission = parts.maximised(counts, free)
        if self.rows and moves is not None:
            transition = Dense(self.rows.maximised(counts.transition, moves, transition.dense()))
        if self.states and emits is not None:
            emission = self.states.maximised(emission, counts.emission, emits)
        return Parts(start, transition, emission)
