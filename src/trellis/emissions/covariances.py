"""Covariances of Gaussian emissions: spherical, diagonal, full, or full and shared by all states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.errors import InputError

JITTER = 1e-7  # added to the diagonal of a covariance that is not quite positive definite
SMALLEST_WEIGHT = 1e-5  # smallest number by which a scatter is divided to estimate a variance
LOG_TWO_PI = math.log(2 * math.pi)
Array = Any  # a tensor, or a NumPy array of the same shape: the M-step has the same formulas for both


class GaussianPrior(NamedTuple):
    """A normal prior on the means, and an inverse gamma (spherical, diagonal) or inverse Wishart (full, tied)
    prior on the covariances."""

    mean: Array
    mean_weight: Array
    covar: Array
    covar_weight: Array


class Moments(NamedTuple):
    """Expected visits [K, 1], and expected sums of x - origin [K, F] and of its squares or products [K, ...]."""

    visits: Array
    first: Array
    second: Array


class Covariance(ABC):
    """A parameterisation of the covariances of K states over F features.

    The methods of the M-step accept tensors or NumPy arrays."""

    by_state = True  # whether each state has a covariance of its own

    @abstractmethod
    def shape(self, states: int, features: int) -> tuple[int, ...]:
        """The shape of the covariance parameters."""

    @abstractmethod
    def free(self, states: int, features: int) -> int:
        """The number of free parameters."""

    @abstractmethod
    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        """The covariances of all states from one matrix [F, F]."""

    @abstractmethod
    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        """The covariances as matrices [K, F, F]."""

    @abstractmethod
    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        """log N(x; mean_z, covar_z): [N, F] -> [N, K]."""

    @abstractmethod
    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        """log N(x; mean_z, covar_z) as coefficients of the monomials of x, [K, D], and the largest precision, as
        arrays. Raises LinAlgError if a covariance is not positive definite."""

    @abstractmethod
    def variances(self, covars: Array) -> Array:
        """The variances of the features."""

    @abstractmethod
    def second(self, x: Array) -> Array:
        """Squares or products of x: [F, N] -> [D, N]."""

    @abstractmethod
    def scatter(self, moments: Moments, shift: Array) -> Array:
        """The expected sums of squares or products around the means, which are origin + shift [K, F]: [K, ...]."""

    @abstractmethod
    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        """MAP covariances, given the scatter, the visits [K, 1], the prior, and `off` [K, F], the means minus those of
        the prior."""

    def of_states(self, states: Array) -> Array:
        """The mask `states` [K] as a mask of covariances, which can be broadcast to their shape."""
        return states.reshape(-1, *[1] * (len(self.shape(1, 1)) - 1))


class Diagonal(Covariance):
    """Diagonal covariances: variances [K, F]."""

    def shape(self, states: int, features: int) -> tuple[int, ...]:
        return states, features

    def free(self, states: int, features: int) -> int:
        return math.prod(self.shape(states, features))

    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        return covariance.diagonal().repeat(states, 1)

    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        return torch.diag_embed(covars)

    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        variances = covars.clamp(min=torch.finfo(covars.dtype).tiny)
        squares = x.new_zeros(len(x), len(means))
        for feature, mean, variance in zip(x.T, means.T, variances.T, strict=True):
            squares += (feature[:, None] - mean).square() / variance
        return -0.5 * (x.shape[1] * LOG_TWO_PI + variances.log().sum(-1) + squares)

    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        variances = np.maximum(covars, np.finfo(np.float64).tiny)
        precisions = 1 / variances
        linear = precisions * means
        constant = np.add.reduce(np.log(variances) + linear * means, -1, keepdims=True) + means.shape[1] * LOG_TWO_PI
        return np.concatenate([-0.5 * constant, linear, -0.5 * precisions], 1), np.maximum.reduce(precisions, None)

    def variances(self, covars: Array) -> Array:
        return covars

    def second(self, x: Array) -> Array:
        return x * x

    def scatter(self, moments: Moments, shift: Array) -> Array:
        visits, first, second = moments
        return second + shift * (shift * visits - 2 * first)

    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        weight = at_least(prior.covar_weight - 1, 0) + visits
        return (prior.covar + scatter + prior.mean_weight * off * off) / at_least(weight, SMALLEST_WEIGHT)


class Spherical(Diagonal):
    """One variance per state, [K]."""

    def shape(self, states: int, features: int) -> tuple[int, ...]:
        return (states,)

    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        """The mean of all entries, as in hmmlearn."""
        return covariance.mean().repeat(states)

    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        return torch.diag_embed(covars[:, None].expand(states, features))

    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        return super().log_density(x, means, covars[:, None].expand_as(means))

    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        return super().coefficients(means, np.broadcast_to(covars[:, None], means.shape))

    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        return super().estimate(scatter, visits, off, prior).mean(-1)


class Full(Covariance):
    """Full covariance matrices [K, F, F]."""

    def shape(self, states: int, features: int) -> tuple[int, ...]:
        return states, features, features

    def free(self, states: int, features: int) -> int:
        return states * features * (features + 1) // 2

    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        return covariance.repeat(states, 1, 1)

    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        return covars

    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        root = cholesky(covars)
        distances = torch.linalg.solve_triangular(root, x.T - means[..., None], upper=False).square().sum(-2)
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (x.shape[1] * LOG_TWO_PI + log_det + distances.T)

    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        inverse = np.linalg.inv(np.linalg.cholesky(covars))
        precisions = inverse.swapaxes(-1, -2) @ inverse
        linear = (precisions @ means[..., None])[..., 0]
        squares = precisions.reshape(len(covars), -1)
        diagonal = np.add.reduce(np.log(self.variances(inverse)), -1, keepdims=True)
        constant = np.add.reduce(linear * means, -1, keepdims=True) - 2 * diagonal + means.shape[1] * LOG_TWO_PI
        found = (
            np.broadcast_arrays(-0.5 * constant, means[:, :1])[0],
            linear,
            np.broadcast_to(-0.5 * squares, (len(means), squares.shape[1])),
        )
        return np.concatenate(found, 1), np.maximum.reduce(np.add.reduce(self.variances(precisions), -1))

    def second(self, x: Array) -> Array:
        return (x[:, None] * x).reshape(len(x) ** 2, -1)

    def variances(self, covars: Array) -> Array:
        features = covars.shape[-1]
        return covars.reshape(*covars.shape[:-2], features**2)[..., :: features + 1]

    def scatter(self, moments: Moments, shift: Array) -> Array:
        visits, first, second = moments
        cross = outer(first, shift)
        return second.reshape(*shift.shape, -1) - cross - cross.mT + outer(shift, shift) * visits[:, None]

    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        weight = at_least(prior.covar_weight - off.shape[1], 0) + visits[:, None]
        total = prior.covar + scatter + outer(prior.mean_weight * off, off)
        return total / at_least(weight, SMALLEST_WEIGHT)


class Tied(Full):
    """One matrix [F, F] shared by all states."""

    by_state = False

    def shape(self, states: int, features: int) -> tuple[int, ...]:
        return features, features

    def free(self, states: int, features: int) -> int:
        return features * (features + 1) // 2

    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        return covariance

    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        return covars.expand(states, features, features)

    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        return super().log_density(x, means, covars.expand(len(means), *covars.shape))

    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        return super().coefficients(means, covars[None])

    def of_states(self, states: Array) -> Array:
        return states.any()

    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        weight = at_least(prior.covar_weight - off.shape[1], 0) + visits.sum()
        total = prior.covar + (scatter + outer(prior.mean_weight * off, off)).sum(0)
        return total / at_least(weight, SMALLEST_WEIGHT)


COVARIANCES: dict[str, Covariance] = {
    "spherical": Spherical(),
    "diag": Diagonal(),
    "full": Full(),
    "tied": Tied(),
}


def outer(left: Array, right: Array) -> Array:
    """The outer product: [..., F], [..., F] -> [..., F, F]."""
    return left[..., :, None] * right[..., None, :]


def at_least(values: Array, smallest: float) -> Array:
    return values.clamp(min=smallest) if isinstance(values, Tensor) else np.maximum(values, smallest)


def cholesky(covars: Tensor) -> Tensor:
    """The Cholesky factor of covariances [..., F, F]; jitter is added if one of them is not positive definite."""
    root, failed = torch.linalg.cholesky_ex(covars)
    if not bool(failed.any()):
        return root
    size = covars.diagonal(dim1=-2, dim2=-1).mean(-1)
    for nudge in (torch.full_like(size, JITTER), JITTER * (1 + size)):
        root, failed = torch.linalg.cholesky_ex(covars + torch.diag_embed(nudge[..., None].expand(covars.shape[:-1])))
        if not bool(failed.any()):
            return root
    raise InputError("A covariance is not symmetric and positive definite; use a larger covars_prior or min_covar.")
