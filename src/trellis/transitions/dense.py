"""A transition matrix written out."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.transitions.base import Transition


class Dense(Transition):
    """A [K, K], or one matrix per step [T-1, K, K], or per sequence and step [B, T-1, K, K]."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.num_states = matrix.shape[-1]

    @property
    def varies(self) -> bool:
        return self.matrix.dim() > 2

    def forward(self, probs: Tensor) -> Tensor:
        if self.matrix.dim() == 2:
            return probs @ self.matrix
        return (probs.unsqueeze(-2) @ self.matrix).squeeze(-2)

    def backward(self, message: Tensor) -> Tensor:
        if self.matrix.dim() == 2:
            return message @ self.matrix.T
        return (self.matrix @ message.unsqueeze(-1)).squeeze(-1)

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        if self.matrix.dim() == 2:
            return self.matrix[before.unsqueeze(-1), after.unsqueeze(-2)]
        shape = (*before.shape, self.num_states)
        rows = self.matrix.expand(*shape[:-2], *self.matrix.shape[-2:]).gather(-2, before.unsqueeze(-1).expand(shape))
        return rows.gather(-1, after.unsqueeze(-2).expand(*before.shape, after.shape[-1]))

    def bilinear(self, left: Tensor, right: Tensor) -> Tensor:
        if self.matrix.dim() == 2:
            return self.matrix * (left.reshape(-1, self.num_states).T @ right.reshape(-1, self.num_states))
        pairs = self.matrix * left.unsqueeze(-1) * right.unsqueeze(-2)
        return pairs.sum(0) if self.matrix.dim() == 3 and pairs.dim() == 4 else pairs

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        if self.matrix.dim() == 2:
            index = (before.unsqueeze(-1).expand_as(pairs), after.unsqueeze(-2).expand_as(pairs))
            return torch.zeros_like(self.matrix).index_put(index, pairs, accumulate=True)
        rows = pairs.new_zeros(*pairs.shape[:-1], self.num_states)
        rows = rows.scatter_add(-1, after.unsqueeze(-2).expand_as(pairs), pairs)
        full = pairs.new_zeros(*pairs.shape[:-2], self.num_states, self.num_states)
        full = full.scatter_add(-2, before.unsqueeze(-1).expand_as(rows), rows)
        return full.sum(0) if self.matrix.dim() == 3 else full

    def dense(self) -> Tensor:
        return self.matrix

    def at(self, step: int) -> Transition:
        if self.matrix.dim() == 2:
            return self
        return Dense(self.matrix.select(-3, step))
