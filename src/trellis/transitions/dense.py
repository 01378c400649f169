"""Transitions given by a dense matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.kernels import estimates
from trellis.kernels.thin import few_times, times_few
from trellis.transitions.base import Countable, Entry, Operator, Samplable, invert, select
from trellis.types import Groups

if TYPE_CHECKING:
    from trellis.transitions.varying import TimeVarying


class DenseEntry(Entry):
    """Transitions given by a matrix A [R, K]."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.num_states = matrix, matrix.shape[-1]

    def forward(self, probs: Tensor) -> Tensor:
        return probs @ self.matrix

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return self.matrix[before.unsqueeze(-1), after.unsqueeze(-2)]


class Dense(DenseEntry, Countable, Samplable):
    """A transition matrix A [K, K]. Its sufficient statistics are expected transitions [K, K]."""

    def forward(self, probs: Tensor) -> Tensor:
        return few_times(probs, self.matrix)

    def backward(self, message: Tensor) -> Tensor:
        return times_few(self.matrix, message)

    def between(self, ids: Tensor, groups: Groups | None = None) -> TimeVarying:
        """The transitions between the live states [B, T, k] of adjacent steps. If the live states of each step are one
        class, the blocks are read from A without a copy, except while gradients are recorded on a GPU."""
        recorded = self.matrix.requires_grad and torch.is_grad_enabled()
        if groups is None or (self.matrix.is_cuda and recorded):
            return super().between(ids, groups)
        from trellis.transitions.varying import ClassBlocks

        return ClassBlocks(self.matrix, ids, groups)

    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        return self.matrix * (left.reshape(-1, self.num_states).T @ right.reshape(-1, self.num_states))

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        index = (before.unsqueeze(-1).expand_as(pairs), after.unsqueeze(-2).expand_as(pairs))
        return torch.zeros_like(self.matrix).index_put(index, pairs, accumulate=True)

    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Dense:
        return Dense(most_probable(statistics, pseudocount, self.matrix))

    def consuming(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Dense:
        inherited = type(self).maximised is Dense.maximised
        if inherited and (kernels := estimates.overwritten(statistics, pseudocount, self.matrix)):
            return Dense(kernels.rows(statistics, pseudocount, self.matrix, True, out=statistics))
        return self.maximised(statistics, pseudocount)

    def dense(self) -> Tensor:
        return self.matrix

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return invert(self.matrix[states], uniform)

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        return invert(weights * self.matrix.T[states], uniform)


class DenseStep(Operator):
    """One step of time-varying transition matrices: [K, K] for all sequences, or [B, K, K], one per sequence."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.num_states = matrix, matrix.shape[-1]

    def forward(self, probs: Tensor) -> Tensor:
        return (probs.unsqueeze(-2) @ self.matrix).squeeze(-2)

    def backward(self, message: Tensor) -> Tensor:
        return (self.matrix @ message.unsqueeze(-1)).squeeze(-1)

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return cut(self.matrix, before, after)

    def dense(self) -> Tensor:
        return self.matrix

    def max_product(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        return (scores.unsqueeze(-1) + self.matrix.log()).max(-2)

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return invert(select(self.matrix, states, -2), uniform)

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        return invert(weights * select(self.matrix, states, -1), uniform)


def cut(matrix: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The entries matrix[..., before, after] of matrices [..., K, K]: [..., k], [..., k'] -> [..., k, k']."""
    shape = (*before.shape, matrix.shape[-1])
    rows = matrix.expand(*shape[:-2], *matrix.shape[-2:]).gather(-2, before.unsqueeze(-1).expand(shape))
    return rows.gather(-1, after.unsqueeze(-2).expand(*before.shape, after.shape[-1]))
