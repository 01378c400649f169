"""The joint transition of independent chains, A = A_1 x A_2 x ... x A_M, never formed as a matrix."""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from trellis.transitions.base import Samplable, invert

LARGEST_MERGED = 128  # adjacent chains are merged into one of up to this many states, because wide products are faster


class Kronecker(Samplable):
    """The joint transition A[z, z'] = prod_m A_m[z_m, z'_m] of M chains. The joint state z has the digits z_1 ... z_M,
    the states of the chains; the last digit varies fastest.

    A step takes one small product per digit: O(K sum_m K_m) for K = prod_m K_m joint states."""

    def __init__(self, matrices: Sequence[Tensor]) -> None:
        self.matrices = list(matrices)
        self.sizes = tuple(len(matrix) for matrix in self.matrices)
        self.num_states = math.prod(self.sizes)
        self.merged = merge(self.matrices)

    def forward(self, probs: Tensor) -> Tensor:
        return through(probs, self.merged)

    def backward(self, message: Tensor) -> Tensor:
        return through(message, [matrix.T for matrix in self.merged])

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        pairs = zip(self.matrices, digits(before, self.sizes), digits(after, self.sizes), strict=True)
        return torch.stack([matrix[i.unsqueeze(-1), j.unsqueeze(-2)] for matrix, i, j in pairs]).prod(0)

    def dense(self) -> Tensor:
        return reduce(torch.kron, self.matrices)

    def rows(self, states: Tensor) -> Tensor:
        return outer([matrix[z] for matrix, z in zip(self.matrices, digits(states, self.sizes), strict=True)])

    def max_product(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The best score and the best previous state for each state, found one digit at a time. The first digit comes
        last, so that the lowest of several best states is chosen."""
        origin = torch.arange(self.num_states, device=scores.device).expand_as(scores)
        for matrix in reversed(self.matrices):
            shape = (len(scores), -1, len(matrix))
            scores, chosen = (scores.view(shape).unsqueeze(-1) + matrix.log()).max(-2)
            origin = origin.reshape(shape).gather(-1, chosen)
            scores, origin = (found.transpose(1, 2).flatten(1) for found in (scores, origin))
        return scores, origin

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return invert(self.rows(states), uniform)

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        columns = zip(self.matrices, digits(states, self.sizes), strict=True)
        return invert(weights * outer([matrix.T[z] for matrix, z in columns]), uniform)


def merge(matrices: Sequence[Tensor]) -> list[Tensor]:
    """The same Kronecker product as fewer, larger factors: neighbouring small matrices are multiplied."""
    merged: list[Tensor] = []
    for matrix in matrices:
        together = merged and len(merged[-1]) * len(matrix) <= LARGEST_MERGED
        merged.append(torch.kron(merged.pop(), matrix) if together else matrix)
    return merged


def through(values: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiply values [..., K] by the Kronecker product of matrices. Each matrix product contracts the leading digit
    and moves it to the end."""
    moved = values.reshape(-1, values.shape[-1])
    for matrix in matrices:
        moved = (moved.view(len(moved), len(matrix), -1).transpose(1, 2) @ matrix).flatten(1)
    return moved.view(values.shape)


def outer(factors: Sequence[Tensor]) -> Tensor:
    """The Kronecker product of rows: [n, K_1], ..., [n, K_M] -> [n, K]."""
    return reduce(lambda left, right: (left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(-2), factors)


def outer_sum(factors: Sequence[Tensor]) -> Tensor:
    """Like `outer`, but with sums instead of products."""
    return reduce(lambda left, right: (left.unsqueeze(-1) + right.unsqueeze(-2)).flatten(-2), factors)


def digits(states: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The digits z_1, ..., z_M of joint states z, where digit m has sizes[m] values."""
    found: list[Tensor] = []
    for size in reversed(sizes):
        found.insert(0, states % size)
        states = states // size
    return found


def marginals(probs: Tensor, sizes: Sequence[int]) -> Tensor:
    """The distribution of each digit, concatenated: [..., K] -> [..., sum_m K_m]."""
    parts = probs.view(*probs.shape[:-1], *sizes)
    modes = range(-len(sizes), 0)
    return torch.cat([parts.sum([n for n in modes if n != m]) if len(sizes) > 1 else parts for m in modes], -1)
