"""Feature maps phi: R^d -> R^F with positive values, given as log phi; phi(u) . phi(v) is a kernel of u and v.

A `FeatureMap` is called with x [n, d] and the features to compute, [F'] (all if None). It returns log phi(x) [n, F'].
Entries added to FEATURE_MAPS can be named in a configuration.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from trellis.errors import TrellisError
from trellis.kernels.rows import times


class FeatureMap(nn.Module, ABC):
    """Maps vectors x [n, d] to log phi(x) [n, F'], for the features to compute (all if None)."""

    num_features: int

    @abstractmethod
    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor: ...


class Exponential(FeatureMap):
    """phi_f(x) = exp(w_f . x - |x|^2 / 2) / sqrt(F).

    With random w_f ~ N(0, I), these are positive random features: E phi(x) . phi(y) = exp(x . y). A learned W does not
    approximate this kernel; it gives a model of rank F in its own right."""

    weight: Tensor

    def __init__(self, weight: Tensor, learned: bool) -> None:
        super().__init__()
        self.num_features = len(weight)
        if learned:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        weight = self.weight if kept is None else self.weight[kept]
        low = weight.detach().T.to(x.dtype) if x.dtype is torch.bfloat16 else None
        squares = x.to(weight.dtype).square().sum(-1, keepdim=True)
        return times(x, weight.T, low) - squares / 2 - math.log(self.num_features) / 2


class Taylor(FeatureMap):
    """The Taylor series of exp(x . y), for vectors made positive by softplus. Its features are phi_a(x) = x^a /
    sqrt(a!) for all C(d + order, order) exponents (a_1, ..., a_d) with |a| <= order. The order is the highest for which
    F features suffice."""

    exponents: Tensor  # [F, d]

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        order = max((n for n in range(1, 64) if math.comb(dim + n, n) <= features), default=0)
        if not order:
            raise TrellisError(
                f"model.features is {features}: a Taylor map in {dim} dimensions needs at least {dim + 1}."
            )
        chosen = [c for n in range(order + 1) for c in combinations_with_replacement(range(dim), n)]
        exponents = torch.zeros(len(chosen), dim)
        rows, columns = torch.tensor([(row, i) for row, one in enumerate(chosen) for i in one]).T
        self.register_buffer("exponents", exponents.index_put_((rows, columns), torch.ones(()), accumulate=True))
        self.order, self.num_features = order, len(chosen)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        exponents = self.exponents if kept is None else self.exponents[kept]
        powers = softplus(x.to(exponents.dtype)).log() @ exponents.T
        return powers - (exponents + 1).lgamma().sum(-1) / 2


def gaussian(features: int, dim: int) -> Tensor:
    """Independent Gaussian rows: [F, d]."""
    return torch.randn(features, dim)


def orthogonal(features: int, dim: int) -> Tensor:
    """Gaussian rows; the rows of each group of d are orthogonal: [F, d]."""
    turns, triangles = torch.linalg.qr(torch.randn(-(-features // dim), dim, dim))
    turns = turns * triangles.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # makes them uniformly distributed
    return turns.flatten(0, 1)[:features] * torch.randn(features, dim).norm(dim=-1, keepdim=True)


FEATURE_MAPS: dict[str, Callable[[int, int], FeatureMap]] = {  # dim, features -> map
    "learned": lambda dim, features: Exponential(gaussian(features, dim) / dim**0.25, learned=True),
    "random": lambda dim, features: Exponential(gaussian(features, dim), learned=False),
    "orthogonal": lambda dim, features: Exponential(orthogonal(features, dim), learned=False),
    "taylor": Taylor,
}
