"""The stationary distribution of a chain, by a linear solve that is batched and differentiable, or by iteration."""

import torch
from torch import Tensor

from trellis.transitions import Dense, Transition

MAX_ROUNDS, CONVERGED = 2000, 1e-7


def stationary(matrix: Tensor) -> Tensor:
    """The stationary distribution p = p A of matrices A [..., K, K]: [..., K]. Raises if p is not unique, that is, if
    the chain has more than one closed class.

    Adding the sum of p to every equation of (I - A') p = 0 makes them independent: (I - A' + 1 1') p = 1."""
    ones = matrix.new_ones(matrix.shape[:-1])
    system = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device) - matrix.mT + 1.0
    return torch.linalg.solve(system, ones)


def long_run(start: Tensor, matrix: Tensor) -> Tensor:
    """The stationary distribution [K] of A [K, K]; if it is not unique, the one reached from start [K]."""
    try:
        return stationary(matrix)
    except torch.linalg.LinAlgError:
        return with_restarts(start, Dense(matrix), torch.zeros_like(start))


@torch.no_grad()
def with_restarts(start: Tensor, transition: Transition, ends: Tensor) -> Tensor:
    """The stationary distribution of a chain that restarts after state z with probability ends(z): [K].

    Iterates p <- (p + p A) / 2, which has the same fixed point as p <- p A and also converges for periodic chains."""
    share = start
    for _ in range(MAX_ROUNDS):
        onward = transition.forward(share * (1 - ends)) + (share * ends).sum() * start
        change = float((onward - share).abs().sum())
        share = (share + onward) / (share + onward).sum()
        if change < CONVERGED:
            break
    return share
