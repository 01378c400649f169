"""Sums of operators with jointly normalised rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from trellis.kernels.rows import take
from trellis.transitions.base import Countable, Entry, Operator, Samplable, invert_rest
from trellis.transitions.tiled import Tiled, add
from trellis.transitions.varying import Blocks, TimeVarying
from trellis.types import Groups


class Shares:
    """A weighted sum of n transitions, A[z, z'] = sum_i w_i(z) A_i[z, z']. The rows of each A_i sum to one; the weights
    w [..., R, n] of a row sum to one over the n terms.

    If the rows of the terms have the sums N_i(z) before normalisation, then w_i(z) = N_i(z) / sum_j N_j(z)."""

    parts: tuple[Any, ...]

    def __init__(self, parts: Sequence[Any], weights: Tensor) -> None:
        self.parts, self.weights, self.device = tuple(parts), weights, weights.device
        self.num_rows, self.num_states = weights.shape[-2], self.parts[0].num_states

    @classmethod
    def normalised(cls, *parts: tuple[Any, Tensor]) -> Self:
        """Combine normalised transitions, each given with the logs [R] of its row sums before normalisation."""
        return cls([part for part, _ in parts], torch.stack([log_norm for _, log_norm in parts], -1).softmax(-1))

    def shares(self) -> list[tuple[Any, Tensor]]:
        """Each term and its weights [..., R]."""
        return list(zip(self.parts, self.weights.unbind(-1), strict=True))

    def forward(self, probs: Tensor) -> Tensor:
        return add(part.forward(probs * weight) for part, weight in self.shares())

    def part_blocks(self, before: Tensor, after: Tensor) -> list[Tensor]:
        """The contribution of each term to the result of `blocks`."""
        weights = take(self.weights, before)  # [..., k, n]
        return [part.blocks(before, after) * weights[..., i, None] for i, part in enumerate(self.parts)]

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return add(self.part_blocks(before, after))


class SumEntry(Shares, Entry):
    """A weighted sum of transitions from R states to K states."""


class SumStep(Shares, Operator):
    """A weighted sum of transitions of one step."""

    def backward(self, message: Tensor) -> Tensor:
        return add(part.backward(message) * weight for part, weight in self.shares())

    def dense(self) -> Tensor:
        return add(part.dense() * weight.unsqueeze(-1) for part, weight in self.shares())


class Sum(SumStep, Tiled, Countable, Samplable):
    """A weighted sum of transitions. Its sufficient statistics are those of its terms, flattened and concatenated."""

    def rows(self, states: Tensor) -> Tensor:
        return add(part.rows(states) * weight[states].unsqueeze(-1) for part, weight in self.shares())

    def between(self, ids: Tensor, groups: Groups | None = None) -> TimeVarying:
        parts, weights = [part.between(ids, groups) for part in self.parts], take(self.weights, ids[:, :-1])
        varying = SumBlocks(parts, weights)
        return Blocks(varying.dense()) if any(isinstance(part, Blocks) for part in parts) else varying

    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.cat([part.expected(left * weight, right).flatten() for part, weight in self.shares()])

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        blocks = self.part_blocks(before, after)
        ratio = pairs / add(blocks).clamp(min=torch.finfo(pairs.dtype).tiny)
        found = zip(self.parts, blocks, strict=True)
        return torch.cat([part.collect(before, after, ratio * block).flatten() for part, block in found])

    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Sum:
        """The M-step. A term's weight is its share of the expected transitions from each state."""
        own = statistics.split([part.statistics_shape.numel() for part in self.parts])
        pairs = [(part, one.view(part.statistics_shape)) for part, one in zip(self.parts, own, strict=True)]
        found = [part.row_statistics(one) for part, one in pairs]
        totals = torch.stack([(one + pseudocount).clamp(min=0).sum(-1) for one in found], -1)
        weights = torch.where(totals.sum(-1, keepdim=True) > 0, totals / totals.sum(-1, keepdim=True), self.weights)
        return Sum([part.maximised(one, pseudocount) for part, one in pairs], weights)

    def for_draws(self, draws: int) -> Sum:
        return Sum([part.for_draws(draws) for part in self.parts], self.weights)

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        """Sample a term by its weight, then the next state from this term."""
        chosen, rest = invert_rest(self.weights[states], uniform)
        return choose(chosen, [part.sample_next(states, rest) for part in self.parts])

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        """Sample a term by its contribution to the probability of the given state, then the previous state from this
        term. This costs as much as a forward step."""
        sent = [weights * share for _, share in self.shares()]
        arriving = [part.forward(p).gather(-1, states[:, None]) for part, p in zip(self.parts, sent, strict=True)]
        chosen, rest = invert_rest(torch.cat(arriving, -1), uniform)
        return choose(chosen, [part.sample_prev(states, p, rest) for part, p in zip(self.parts, sent, strict=True)])


class SumBlocks(TimeVarying):
    """A weighted sum of n transitions between live states, none of which is a `Blocks`. weights is [B, T-1, k, n]."""

    def __init__(self, parts: Sequence[TimeVarying], weights: Tensor) -> None:
        self.parts, self.weights, self.num_states = tuple(parts), weights, parts[0].num_states

    def at(self, step: int) -> SumStep:
        return SumStep([part.at(step) for part in self.parts], self.weights.select(-3, step))

    def dense(self) -> Tensor:
        return add(part.dense() * self.weights[..., i, None] for i, part in enumerate(self.parts))

    def some(self, sequences: Tensor) -> SumBlocks:
        return SumBlocks([part.some(sequences) for part in self.parts], self.weights[sequences])


def choose(which: Tensor, choices: Sequence[Tensor]) -> Tensor:
    """For each b, choices[which[b]][b]: -> [B]."""
    return torch.stack(list(choices), -1).gather(-1, which.unsqueeze(-1)).squeeze(-1)
