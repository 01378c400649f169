"""Transition: a non-negative linear map between states, A[z, z'] = p(z' | z)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from trellis.types import Groups


class Transition(ABC):
    """The structure of an HMM's transitions. K states; `...` are leading dimensions.

    Inference needs only these methods; a subclass that never forms A [K, K] overrides the defaults built on `dense`.
    """

    num_states: int

    @property
    def varies(self) -> bool:
        """Whether transitions vary with time."""
        return False

    def prepare(self) -> None:
        """Compute now, with its gradient, what all steps share."""
        return

    @abstractmethod
    def forward(self, probs: Tensor) -> Tensor:
        """p A, one step on: [..., K] -> [..., K]."""

    @abstractmethod
    def backward(self, message: Tensor) -> Tensor:
        """A m, one step back: [..., K] -> [..., K]."""

    @abstractmethod
    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        """A[before, after] for the live states of neighbouring steps: [..., k], [..., k'] -> [..., k, k']."""

    @abstractmethod
    def bilinear(self, left: Tensor, right: Tensor) -> Tensor:
        """The expected transitions, sum over leading dimensions of left(z) A(z, z') right(z'), in the operator's own
        statistics: [..., K], [..., K] -> e.g. [K, K] for a dense one. Over A, it is the gradient of left' A right."""

    @abstractmethod
    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        """Expected transitions between live states, added up in the operator's own statistics:
        [..., k], [..., k'], [..., k, k'] -> as `bilinear`."""

    @abstractmethod
    def dense(self) -> Tensor:
        """A itself, [K, K] (with leading dimensions where transitions vary): for oracles and small models."""

    def along(self, ids: Tensor, groups: Groups | None = None) -> Transition:
        """The time-varying operator between the live states [B, T, k] of neighbouring steps, numbered within each."""
        from trellis.transitions.dense import Dense

        return Dense(self.blocks(ids[:, :-1], ids[:, 1:]))

    def rows(self, states: Tensor) -> Tensor:
        """A[states, :], for the few rows that one looks at: [n] -> [n, K]."""
        return self.dense()[states]

    def at(self, step: int) -> Transition:
        """The operator between steps `step` and `step + 1`; itself, unless the operator `varies`."""
        return self

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """max and argmax over z of scores(z) + log A(z, z'): [B, K] -> [B, K], [B, K]."""
        return (scores.unsqueeze(-1) + self.dense().log()).max(-2)

    def ready(self, draws: int) -> Transition:
        """The same operator, prepared for so many draws of `sample_next`."""
        return self

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        """z' ~ A(z, .) by inversion of `uniform`: [B], [B] -> [B]."""
        return invert(select(self.dense(), states, -2), uniform)

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        """z ~ weights(z) A(z, z'): [B], [B, K], [B] -> [B]."""
        return invert(weights * select(self.dense(), states, -1), uniform)


def cached(owner: object, name: str, compute: Callable[[], Tensor], *given: Tensor) -> Tensor:
    """What `compute` gives, kept by its owner; again where gradients of what is `given` are asked for and missing."""
    kept = vars(owner).get(name)
    wanted = torch.is_grad_enabled() and any(part.requires_grad for part in given)
    if kept is None or (wanted and not kept.requires_grad):
        kept = vars(owner)[name] = compute()
    return kept


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
