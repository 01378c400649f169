"""A transition over states on a ring: the distance to the next state has the same distribution everywhere."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.transitions import Countable, Samplable
from trellis.transitions.base import invert


class Ring(Countable, Samplable):
    """A[z, (z + j) mod K] = jumps[j] for j < J: O(K J) per step. The statistics are expected counts of jumps [J]."""

    def __init__(self, jumps: Tensor, num_states: int) -> None:
        self.jumps, self.num_states = jumps, num_states

    def forward(self, probs: Tensor) -> Tensor:
        return sum(q * probs.roll(j, -1) for j, q in enumerate(self.jumps))

    def backward(self, message: Tensor) -> Tensor:
        return sum(q * message.roll(-j, -1) for j, q in enumerate(self.jumps))

    def ahead(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """The distance between each pair of states, and whether one jump covers it: two tensors [..., k, k']."""
        distance = (after.unsqueeze(-2) - before.unsqueeze(-1)) % self.num_states
        return distance.clamp(max=len(self.jumps) - 1), distance < len(self.jumps)

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        distance, near = self.ahead(before, after)
        return self.jumps[distance] * near

    def dense(self) -> Tensor:
        states = torch.arange(self.num_states, device=self.jumps.device)
        return self.blocks(states, states)

    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.stack([q * (left * right.roll(-j, -1)).sum() for j, q in enumerate(self.jumps)])

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        distance, near = self.ahead(before, after)
        return torch.zeros_like(self.jumps).index_add(0, distance.flatten(), (pairs * near).flatten())

    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> Ring:
        return Ring(most_probable(statistics, pseudocount, self.jumps), self.num_states)

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return (states + invert(self.jumps.repeat(len(states), 1), uniform)) % self.num_states

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        return invert(weights * self.dense().T[states], uniform)
