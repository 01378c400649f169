"""Several chains in a batch, each with its own transition matrix over the same number of states."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.transitions.base import Countable


class Stacked(Countable):
    """The transition matrices [R, K, K] of R chains, for a batch of R * B sequences. The first B sequences belong to
    the first chain, the next B to the second, and so on.

    The sufficient statistics are [R, K, K], one matrix per chain."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.chains, self.num_states = matrix.shape[0], matrix.shape[-1]

    def by_chain(self, values: Tensor) -> Tensor:
        """Group sequences by chain: [R * B, ..., K] -> [R, B * ..., K]."""
        return values.reshape(self.chains, -1, self.num_states)

    def per_sequence(self, sequences: int, dims: int) -> Tensor:
        """The index of each sequence's chain: [R * B], followed by `dims` dimensions of length 1."""
        chain = torch.arange(self.chains, device=self.matrix.device).repeat_interleave(sequences // self.chains)
        return chain.view(-1, *[1] * dims)

    def forward(self, probs: Tensor) -> Tensor:
        return (self.by_chain(probs) @ self.matrix).view(probs.shape)

    def backward(self, message: Tensor) -> Tensor:
        return (self.by_chain(message) @ self.matrix.mT).view(message.shape)

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        chain = self.per_sequence(len(before), before.dim())
        return self.matrix[chain, before.unsqueeze(-1), after.unsqueeze(-2)]

    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        return self.matrix * (self.by_chain(left).mT @ self.by_chain(right))

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        index = (self.per_sequence(len(before), before.dim()), before.unsqueeze(-1), after.unsqueeze(-2))
        return torch.zeros_like(self.matrix).index_put(tuple(i.expand_as(pairs) for i in index), pairs, accumulate=True)

    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Stacked:
        return Stacked(most_probable(statistics, pseudocount, self.matrix))

    def rows(self, states: Tensor) -> Tensor:
        """The rows of every chain: [n] -> [R, n, K]."""
        return self.matrix[:, states]

    def dense(self) -> Tensor:
        return self.matrix

    def max_product(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        values, states = (self.by_chain(scores).unsqueeze(-1) + self.matrix.log().unsqueeze(1)).max(-2)
        return values.view(scores.shape), states.view(scores.shape)
