"""Sums of operators, their rows normalised together."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

from trellis.kernels.rows import take
from trellis.transitions.base import Transition, invert_rest, select
from trellis.transitions.dense import Dense
from trellis.transitions.unwritten import Unwritten
from trellis.types import Groups


class Sum(Unwritten):
    """A[z, z'] = sum_i w_i(z) A_i[z, z'], with weights w [K, n] that sum to one and each A_i normalised.

    Unnormalised operators with row sums N_i(z) are normalised together by w_i(z) = N_i(z) / sum_j N_j(z). The
    statistics are those of the parts, flattened, one after the other. Weights [..., k, n] vary with time."""

    def __init__(self, parts: Sequence[Transition], weights: Tensor) -> None:
        self.parts, self.weights, self.device = tuple(parts), weights, weights.device
        self.num_rows, self.num_states = weights.shape[-2], parts[0].num_states

    @classmethod
    def normalised(cls, *parts: tuple[Transition, Tensor]) -> Sum:
        """Of normalised operators and the logs of the row sums [K] that they had."""
        return cls([part for part, _ in parts], torch.stack([log_norm for _, log_norm in parts], -1).softmax(-1))

    @property
    def varies(self) -> bool:
        return self.weights.dim() > 2

    def prepare(self) -> None:
        for part in self.parts:
            part.prepare()

    def shares(self) -> list[tuple[Transition, Tensor]]:
        """Each part and its weights [..., K]."""
        return list(zip(self.parts, self.weights.unbind(-1), strict=True))

    def forward(self, probs: Tensor) -> Tensor:
        return add(part.forward(probs * weight) for part, weight in self.shares())

    def backward(self, message: Tensor) -> Tensor:
        return add(part.backward(message) * weight for part, weight in self.shares())

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return add(self.part_blocks(before, after))

    def part_blocks(self, before: Tensor, after: Tensor) -> list[Tensor]:
        """What each part adds to the blocks."""
        weights = take(self.weights, before)  # [..., k, n]
        return [part.blocks(before, after) * weights[..., i, None] for i, part in enumerate(self.parts)]

    def along(self, ids: Tensor, groups: Groups | None = None) -> Transition:
        parts, weights = [part.along(ids, groups) for part in self.parts], take(self.weights, ids[:, :-1])
        if any(isinstance(part, Dense) for part in parts):  # the price of blocks is paid
            return Dense(add(part.dense() * weights[..., i, None] for i, part in enumerate(parts)))
        return Sum(parts, weights)

    def bilinear(self, left: Tensor, right: Tensor) -> Tensor:
        if self.varies:
            return Dense(self.dense()).bilinear(left, right)
        return torch.cat([part.bilinear(left * weight, right).flatten() for part, weight in self.shares()])

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        blocks = self.part_blocks(before, after)
        ratio = pairs / add(blocks).clamp(min=torch.finfo(pairs.dtype).tiny)
        found = zip(self.parts, blocks, strict=True)
        return torch.cat([part.collect(before, after, ratio * block).flatten() for part, block in found])

    def rows(self, states: Tensor) -> Tensor:
        return add(part.rows(states) * weight[states].unsqueeze(-1) for part, weight in self.shares())

    def dense(self) -> Tensor:
        return add(part.dense() * weight.unsqueeze(-1) for part, weight in self.shares())

    def at(self, step: int) -> Transition:
        return Sum([part.at(step) for part in self.parts], self.weights.select(-3, step)) if self.varies else self

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        return Transition.best(self, scores) if self.varies else super().best(scores)

    def ready(self, draws: int) -> Transition:
        return Sum([part.ready(draws) for part in self.parts], self.weights)

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        """A part by its weight, then that part's draw."""
        chosen, rest = invert_rest(select(self.weights, states, -2), uniform)
        return choose(chosen, [part.sample_next(states, rest) for part in self.parts])

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        """A part by how much of it arrives at z', then that part's draw: the price of a step forward."""
        sent = [weights * share for _, share in self.shares()]
        arriving = [part.forward(p).gather(-1, states[:, None]) for part, p in zip(self.parts, sent, strict=True)]
        chosen, rest = invert_rest(torch.cat(arriving, -1), uniform)
        drawn = [part.sample_prev(states, p, rest) for part, p in zip(self.parts, sent, strict=True)]
        return choose(chosen, drawn)


def add(tensors: Iterable[Tensor]) -> Tensor:
    return reduce(operator.add, tensors)


def choose(which: Tensor, choices: Sequence[Tensor]) -> Tensor:
    """choices[which[b]][b]: [B]."""
    return torch.stack(list(choices), -1).gather(-1, which.unsqueeze(-1)).squeeze(-1)
