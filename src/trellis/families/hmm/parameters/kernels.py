"""Kernels: positive functions k(x, y) of two vectors, as log k. Normalising the rows of k gives probabilities.

Each maps x [..., n, l] and y [..., m, l] to log k [..., n, m]; s denotes the inner product x . y.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

Kernel = Callable[[Tensor, Tensor], Tensor]
SMALLEST = 1e-30  # lower bound on |s| in normAbsLin, to keep its logarithm finite
LINEAR_BELOW = -20.0  # below this, log(log(1 + exp(s))) equals s in double precision


def of_product(function: Callable[[Tensor], Tensor]) -> Kernel:
    """The kernel whose logarithm is the given function of the inner product."""
    return lambda x, y: function(x @ y.mT)


def log_softplus(s: Tensor) -> Tensor:
    """log(log(1 + exp(s))): a strictly positive ReLU."""
    return torch.where(s < LINEAR_BELOW, s, softplus(s.clamp(min=LINEAR_BELOW)).log())


def log_gaussian(x: Tensor, y: Tensor) -> Tensor:
    """-|x - y|^2 / 2."""
    return x @ y.mT - (x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2)) / 2


KERNELS: dict[str, Kernel] = {
    "softmax": of_product(lambda s: s),
    "normAbsLin": of_product(lambda s: (s.abs() + SMALLEST).log()),
    "sigmoid": of_product(logsigmoid),
    "relu": of_product(log_softplus),
    "rbf": log_gaussian,
}


def log_probabilities(kernel: Kernel, given: Tensor, outcomes: Tensor) -> Tensor:
    """log p(j | i) with p(j | i) proportional to k(given_i, outcomes_j): [..., n, l], [..., m, l] -> [..., n, m]."""
    return kernel(given, outcomes).log_softmax(-1)
