"""Pairs of neighbouring symbols, from first principles."""

from torch import Tensor

from trellis.learning.cooccurrence import joint_states


def cooccurrences(transition: Tensor, emission: Tensor) -> Tensor:
    """p(symbol i, then symbol j) in the long run: [..., n, n], [..., n, m] -> [..., m, m]."""
    return emission.mT @ joint_states(transition) @ emission
