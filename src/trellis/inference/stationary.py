"""The stationary distribution of a chain, by a linear solve that is batched and differentiable."""

import torch
from torch import Tensor

from trellis.inference import discrete
from trellis.transitions import Dense


def stationary(matrix: Tensor) -> Tensor:
    """The p with p = p A for matrices A [..., K, K]: [..., K]. Raises if p is not unique, that is, if the chain has
    more than one closed class.

    Adding the sum of p to every equation of (I - A') p = 0 makes them independent: (I - A' + 1 1') p = 1."""
    ones = matrix.new_ones(matrix.shape[:-1])
    system = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device) - matrix.mT + 1.0
    return torch.linalg.solve(system, ones)


def long_run(start: Tensor, matrix: Tensor) -> Tensor:
    """The stationary distribution [K] of A [K, K]; if it is not unique, the one reached from start [K]."""
    try:
        return stationary(matrix)
    except torch.linalg.LinAlgError:
        return discrete.stationary(start, Dense(matrix), torch.zeros_like(start))
