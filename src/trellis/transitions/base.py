"""The interface of transitions: non-negative linear maps between states, A[z, z'] = p(z' | z)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from trellis.kernels.optional import installed
from trellis.types import Groups

if TYPE_CHECKING:
    from trellis.transitions.varying import TimeVarying

LONG, BLOCK = 2048, 256  # on a GPU, rows longer than this are inverted by blocks of this many weights
SUMMED = 1 << 24  # Viterbi keeps at most this many sums of a score and a log-probability in memory


class Entry(ABC):
    """Transition probabilities A [R, K] from R states to K states. The two sets of states may differ: for example, the
    K states may be those that dropout keeps."""

    num_states: int  # K

    @abstractmethod
    def forward(self, probs: Tensor) -> Tensor:
        """probs @ A, one step forward: [..., R] -> [..., K]."""

    @abstractmethod
    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        """A[before, after] for the live states of adjacent steps: [..., k], [..., k'] -> [..., k, k']."""


class Operator(ABC):
    """The transition matrix A [K, K] of one step. If it is [B, K, K], each sequence has a matrix of its own."""

    num_states: int

    @abstractmethod
    def forward(self, probs: Tensor) -> Tensor:
        """probs @ A, one step forward: [..., K] -> [..., K]."""

    @abstractmethod
    def backward(self, message: Tensor) -> Tensor:
        """A @ message, one step backward: [..., K] -> [..., K]."""

    def forward_at(self, probs: Tensor, states: Tensor) -> Tensor:
        """probs @ A at the given states of each sequence: [B, K], [B, k] -> [B, k]."""
        return self.forward(probs).gather(-1, states)

    def backward_at(self, message: Tensor, states: Tensor) -> Tensor:
        """A @ message at the given states of each sequence: [B, K], [B, k] -> [B, k]."""
        return self.backward(message).gather(-1, states)

    @abstractmethod
    def dense(self) -> Tensor:
        """The whole matrix A [K, K]: for tests and small models."""


class Transition(Operator, Entry):
    """A time-homogeneous transition."""

    def rows(self, states: Tensor) -> Tensor:
        """A[states, :]: [n] -> [n, K]."""
        return self.dense()[states]

    def max_product(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """For each state z', the max and argmax over z of scores(z) + log A(z, z'): [B, K] -> [B, K], [B, K].

        Among several best z, the lowest is chosen."""
        logs = self.dense().log()
        some = max(1, SUMMED // logs.numel())
        found = [(part.unsqueeze(-1) + logs).max(-2) for part in scores.split(some)]
        values, states = (torch.cat(parts) for parts in zip(*found, strict=True)) if len(found) > 1 else found[0]
        return values, states

    def for_products(self, products: int) -> Transition:
        """The same transition in the form that is fastest for this many products with A, among the forms that fit in
        memory."""
        return self

    def between(self, ids: Tensor, groups: Groups | None = None) -> TimeVarying:
        """The transitions between the live states [B, T, k] of adjacent steps. In the result, state i of a step is the
        i-th of its k live states."""
        from trellis.transitions.varying import Blocks

        return Blocks(self.blocks(ids[:, :-1], ids[:, 1:]))


class Countable(Transition):
    """A transition with sufficient statistics for EM. They are one tensor, whose shape depends on the subclass."""

    @abstractmethod
    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        """The statistics of the expected transitions left(z) A(z, z') right(z'), summed over leading dimensions.

        For a dense transition, the shapes are [..., K], [..., K] -> [K, K]. Divided elementwise by A, the result is the
        gradient of left A right with respect to A."""

    @abstractmethod
    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        """Convert expected transitions between live states to statistics: [..., k], [..., k'], [..., k, k'] -> like
        `expected`."""

    @abstractmethod
    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Self:
        """The M-step: the MAP estimate from the statistics, under a Dirichlet prior with parameter pseudocount + 1."""

    def consuming(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Self:
        """`maximised` for statistics that are not needed any more: the result may be written over them."""
        return self.maximised(statistics, pseudocount)


class Samplable(Transition):
    """A transition from which states can be sampled, by inverting the CDF at uniform random numbers."""

    @abstractmethod
    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        """z' ~ A(z, .): [B], [B] -> [B]."""

    @abstractmethod
    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        """z ~ weights(z) A(z, z'): [B], [B, K], [B] -> [B]."""

    def for_draws(self, draws: int) -> Samplable:
        """The same transition, with sampling tables if these save time when `sample_next` draws this many samples."""
        return self


class Summable(Countable, Samplable):
    """A transition that can be a term of a sum (see `trellis.transitions.sum`)."""

    @property
    @abstractmethod
    def statistics_shape(self) -> torch.Size:
        """The shape of the statistics."""

    @abstractmethod
    def row_statistics(self, statistics: Tensor) -> Tensor:
        """The statistics, n per source state: [K, n]. They are -inf where no transition is possible."""


def select(matrix: Tensor, states: Tensor, dim: int) -> Tensor:
    """For each b, row (dim -2) or column (dim -1) `states[b]` of a matrix [K, K] or [B, K, K]: -> [B, K]."""
    if matrix.dim() == 2:
        return matrix.index_select(dim, states).movedim(dim, 0)
    return matrix.movedim(dim, 1)[torch.arange(len(states), device=states.device), states]


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Sample an index in proportion to its weight: [B, K], [B] -> [B]. It is the first index whose cumulative weight
    exceeds uniform * total weight. An index with weight zero is never chosen."""
    return invert_each(weights, uniform.unsqueeze(-1)).squeeze(-1)


def invert_each(weights: Tensor, uniform: Tensor) -> Tensor:
    """Like `invert`, but with n uniform numbers per row: [B, K], [B, n] -> [B, n]."""
    if weights.is_cuda and weights.dim() == 2 and (kernels := installed("kernels.draws.triton")):
        return kernels.invert(weights, uniform)
    if weights.is_cuda and weights.shape[-1] > LONG:
        return invert_by_blocks(weights, uniform)
    return search_cumulative(weights.cumsum(-1), uniform)


def invert_by_blocks(weights: Tensor, uniform: Tensor, size: int = BLOCK) -> Tensor:
    """`invert_each` in two steps: choose a block of weights by its sum, then an index within the block. A GPU is slow
    at cumulative sums of a few long rows."""
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % size)).unflatten(-1, (-1, size))
    sums = padded.sum(-1)
    cumulative = sums.cumsum(-1)
    block = search_cumulative(cumulative, uniform)
    rest = uniform.to(sums.dtype) * cumulative[..., -1:] - (cumulative - sums).gather(-1, block)
    within = padded.gather(-2, block.unsqueeze(-1).expand(*block.shape, size)).cumsum(-1)
    index = torch.searchsorted(within, rest.clamp(min=0.0).unsqueeze(-1), right=True).squeeze(-1)
    return block * size + torch.minimum(index, (within < within[..., -1:]).sum(-1))


def search_cumulative(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """Like `invert`, but with cumulative weights and n uniform numbers per row: [B, K], [B, n] -> [B, n]."""
    target = uniform.to(cumulative.dtype) * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, target, right=True)
    last_positive = (cumulative < cumulative[..., -1:]).sum(-1, keepdim=True)
    return torch.minimum(index, last_positive)


def invert_rest(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """An index sampled in proportion to its weight, and a new uniform number that is independent of it: [B], [B]. The
    new number is the position of `uniform` within the interval of the index, scaled to [0, 1]."""
    weights, uniform = weights.double(), uniform.double()
    index = invert(weights, uniform).unsqueeze(-1)
    here, until = weights.gather(-1, index), weights.cumsum(-1).gather(-1, index)
    rest = uniform.unsqueeze(-1) * weights.sum(-1, keepdim=True) - (until - here)
    return index.squeeze(-1), (rest / here).clamp(0.0, 1.0).squeeze(-1)
