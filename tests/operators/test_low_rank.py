"""The conformance suite serves operators that are not dense: A = U V, through a few hidden ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance import OperatorConformance, seeded
from strategies import distributions
from trellis.operators import Transition

STATES, RANK = 5, 2


class LowRank(Transition):
    """A = U V with U [K, R] and V [R, K]; its statistics are the expected steps z -> r and r -> z': [2, K, R]."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.num_states = len(left)

    def forward(self, probs: Tensor) -> Tensor:
        return probs @ self.left @ self.right

    def backward(self, message: Tensor) -> Tensor:
        return message @ self.right.T @ self.left.T

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return self.left[before] @ self.right.T[after].transpose(-1, -2)

    def bilinear(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = left.reshape(-1, self.num_states), right.reshape(-1, self.num_states)
        into = self.left * (left.T @ (right @ self.right.T))
        out = self.right.T * (right.T @ (left @ self.left))
        return torch.stack([into, out])

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        ratio = pairs / self.blocks(before, after)
        into = self.left[before] * (ratio @ self.right.T[after])
        out = self.right.T[after] * (ratio.transpose(-1, -2) @ self.left[before])
        total = torch.zeros_like(self.left).expand(2, -1, -1).clone()
        total[0].index_add_(0, before.flatten(), into.flatten(0, -2))
        total[1].index_add_(0, after.flatten(), out.flatten(0, -2))
        return total

    def dense(self) -> Tensor:
        return self.left @ self.right


class TestLowRank(OperatorConformance):
    def parameters(self) -> tuple[Tensor, ...]:
        generator = seeded(13)
        return distributions(generator, STATES, RANK), distributions(generator, RANK, STATES)

    def build(self, *parameters: Tensor) -> Transition:
        return LowRank(*parameters)

    def statistics(self, operator: Transition, pairs: Tensor) -> Tensor:
        """Each transition shared out among the ranks it may have gone through."""
        assert isinstance(operator, LowRank)
        through = torch.einsum("ir,rj->ijr", operator.left, operator.right) / operator.dense().unsqueeze(-1)
        shared = pairs.sum((0, 1)).unsqueeze(-1) * through
        return torch.stack([shared.sum(1), shared.sum(0)])
