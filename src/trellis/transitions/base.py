"""Non-negative linear maps between states, A[z, z'] = p(z' | z): what inference asks of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from trellis.types import Groups

if TYPE_CHECKING:
    from trellis.transitions.varying import TimeVarying


class Entry(ABC):
    """Transitions from R states of one model into the K states of another, such as the ones that dropout keeps."""

    num_states: int  # K

    @abstractmethod
    def forward(self, probs: Tensor) -> Tensor:
        """p A, one step forward: [..., R] -> [..., K]."""

    @abstractmethod
    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        """A[before, after] for the live states of neighbouring steps: [..., k], [..., k'] -> [..., k, k']."""


class Operator(ABC):
    """The transition of one step, K states to K; a leading dimension [B] is one matrix per sequence."""

    num_states: int

    @abstractmethod
    def forward(self, probs: Tensor) -> Tensor:
        """p A, one step forward: [..., K] -> [..., K]."""

    @abstractmethod
    def backward(self, message: Tensor) -> Tensor:
        """A m, one step backward: [..., K] -> [..., K]."""

    @abstractmethod
    def dense(self) -> Tensor:
        """A itself, [K, K]: for oracles and small models."""


class Transition(Operator, Entry):
    """A transition that is the same at every step."""

    def rows(self, states: Tensor) -> Tensor:
        """A[states, :]: [n] -> [n, K]."""
        return self.dense()[states]

    def max_product(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """max and argmax over z of scores(z) + log A(z, z'): [B, K] -> [B, K], [B, K]; ties go to the lowest z."""
        return (scores.unsqueeze(-1) + self.dense().log()).max(-2)

    def between(self, ids: Tensor, groups: Groups | None = None) -> TimeVarying:
        """The transitions between the live states [B, T, k] of neighbouring steps, numbered within each step."""
        from trellis.transitions.varying import Blocks

        return Blocks(self.blocks(ids[:, :-1], ids[:, 1:]))


class Countable(Transition):
    """A transition with sufficient statistics, in a layout of its own: one tensor, which adds and scales."""

    @abstractmethod
    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        """Expected transitions, the sum over leading dimensions of left(z) A(z, z') right(z'), as statistics:
        [..., K], [..., K] -> [K, K] for a dense one. Divided by A, the gradient of left' A right."""

    @abstractmethod
    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        """Transitions between live states as statistics: [..., k], [..., k'], [..., k, k'] -> like `expected`."""

    @abstractmethod
    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Self:
        """The M-step: the most probable operator given statistics and a Dirichlet prior of pseudocount + 1."""


class Samplable(Transition):
    """A transition that states can be drawn from, by inversion of uniform numbers."""

    @abstractmethod
    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        """z' ~ A(z, .): [B], [B] -> [B]."""

    @abstractmethod
    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        """z ~ weights(z) A(z, z'): [B], [B, K], [B] -> [B]."""

    def for_draws(self, draws: int) -> Samplable:
        """The same transition, with whatever tables pay for so many draws of `sample_next`."""
        return self


class Summable(Countable, Samplable):
    """A transition that can be a part of a sum, see `trellis.transitions.sum`."""

    @property
    @abstractmethod
    def statistics_shape(self) -> torch.Size:
        """Of its statistics."""

    @abstractmethod
    def row_statistics(self, statistics: Tensor) -> Tensor:
        """Those that belong to the state that a transition leaves, -inf where there is no transition: [K, n]."""


def select(matrix: Tensor, states: Tensor, dim: int) -> Tensor:
    """Row (dim -2) or column (dim -1) `states[b]` of [K, K] or [B, K, K]: -> [B, K]."""
    if matrix.dim() == 2:
        return matrix.index_select(dim, states).movedim(dim, 0)
    return matrix.movedim(dim, 1)[torch.arange(len(states), device=states.device), states]


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The index whose cumulative weight first exceeds uniform * total: [B, K], [B] -> [B]; never one of weight zero."""
    cumulative = weights.cumsum(-1)
    target = uniform.unsqueeze(-1).to(weights.dtype) * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    last_positive = (cumulative < cumulative[..., -1:]).sum(-1)
    return torch.minimum(index, last_positive)


def invert_rest(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """An index by inversion, and what is left of `uniform`: again uniform, and independent of the index, [B] both."""
    weights, uniform = weights.double(), uniform.double()
    index = invert(weights, uniform).unsqueeze(-1)
    here, until = weights.gather(-1, index), weights.cumsum(-1).gather(-1, index)
    rest = uniform.unsqueeze(-1) * weights.sum(-1, keepdim=True) - (until - here)
    return index.squeeze(-1), (rest / here).clamp(0.0, 1.0).squeeze(-1)
