"""Gaussian emissions, with covariances that are spherical, diagonal, full, or full and shared by all states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions.base import Emission, Vectors
from trellis.errors import InputError
from trellis.types import Potentials

JITTER = 1e-7  # added to the diagonal of a covariance that is not quite positive definite
SMALLEST_WEIGHT = 1e-5  # minimum visits for estimating a variance


class GaussianPrior(NamedTuple):
    """A normal prior on the means, and an inverse gamma (diagonal) or Wishart (full) prior on the covariances."""

    mean: Tensor
    mean_weight: Tensor
    covar: Tensor
    covar_weight: Tensor


class Moments(NamedTuple):
    """Expected visits [K, 1], and expected sums of x [K, F] and of its squares or products [K, ...]."""

    visits: Tensor
    first: Tensor
    second: Tensor


class Covariance(ABC):
    """A parameterisation of the covariances of K states over F features."""

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
    def second(self, x: Tensor) -> Tensor:
        """Squares or products of x [N, F], flat: [N, D]."""

    @abstractmethod
    def scatter(self, moments: Moments, means: Tensor, prior: GaussianPrior) -> Tensor:
        """The squares or products of x - mean, summed over the visits, plus the prior mean's term."""

    @abstractmethod
    def estimate(self, moments: Moments, means: Tensor, prior: GaussianPrior) -> Tensor:
        """MAP covariances around the means [K, F], given the moments and the prior."""

    def visited(self, moments: Moments) -> Tensor:
        """Mask of the covariances with data, broadcastable to their shape."""
        return moments.visits.view(-1, *[1] * (len(self.shape(1, 1)) - 1)) > 0


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
        return -0.5 * (x.shape[1] * math.log(2 * math.pi) + variances.log().sum(-1) + squares)

    def second(self, x: Tensor) -> Tensor:
        return x.square()

    def scatter(self, moments: Moments, means: Tensor, prior: GaussianPrior) -> Tensor:
        """The squared distances of the visits from the mean, plus the prior mean's term: [K, F]."""
        visits, first, second = moments
        around = second - 2 * means * first + means.square() * visits
        return around + prior.mean_weight * (means - prior.mean).square()

    def estimate(self, moments: Moments, means: Tensor, prior: GaussianPrior) -> Tensor:
        weight = (prior.covar_weight - 1).clamp(min=0) + moments.visits
        return (prior.covar + self.scatter(moments, means, prior)) / weight.clamp(min=SMALLEST_WEIGHT)


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

    def estimate(self, moments: Moments, means: Tensor, prior: GaussianPrior) -> Tensor:
        return super().estimate(moments, means, prior).mean(-1)


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
        distances = torch.linalg.solve_triangular(root, (x - means[:, None]).mT, upper=False).square().sum(-2)
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (x.shape[1] * math.log(2 * math.pi) + log_det + distances.T)

    def second(self, x: Tensor) -> Tensor:
        return (x[:, :, None] * x[:, None, :]).flatten(1)

    def scatter(self, moments: Moments, means: Tensor, prior: GaussianPrior) -> Tensor:
        """The scatter matrix of the visits around the mean, plus the prior mean's term: [K, F, F]."""
        visits, first, second = moments
        cross, off = outer(first, means), means - prior.mean
        around = second.view(*means.shape, -1) - cross - cross.mT + outer(means, means) * visits[:, None]
        return around + outer(prior.mean_weight * off, off)

    def estimate(self, moments: Moments, means: Tensor, prior: GaussianPrior) -> Tensor:
        weight = (prior.covar_weight - means.shape[1]).clamp(min=0) + moments.visits[:, None]
        return (prior.covar + self.scatter(moments, means, prior)) / weight.clamp(min=SMALLEST_WEIGHT)


class Tied(Full):
    """One matrix [F, F] shared by all states."""

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

    def visited(self, moments: Moments) -> Tensor:
        return moments.visits.sum() > 0

    def estimate(self, moments: Moments, means: Tensor, prior: GaussianPrior) -> Tensor:
        weight = (prior.covar_weight - means.shape[1]).clamp(min=0) + moments.visits.sum()
        return (prior.covar + self.scatter(moments, means, prior).sum(0)) / weight.clamp(min=SMALLEST_WEIGHT)


COVARIANCES: dict[str, Covariance] = {
    "spherical": Spherical(),
    "diag": Diagonal(),
    "full": Full(),
    "tied": Tied(),
}


class Gaussian(Emission):
    """p(x | z) = N(x; means[z], covariance of z): means [K, F], covars in the shape of their type.

    The statistics are expected sums of 1, x, and the squares or products of x, [K, D]; `trained` lists what the M-step
    estimates: m (means), c (covariances)."""

    def __init__(self, means: Tensor, covars: Tensor, kind: str, trained: str = "mc") -> None:
        self.means, self.covars, self.num_states = means, covars, len(means)
        self.kind_name, self.kind, self.trained = kind, COVARIANCES[kind], trained

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        return Potentials(self.log_density(observations.values), observations.rows, all_observed=all_observed)

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        x = observations.values
        return visits.T @ torch.cat([torch.ones_like(x[:, :1]), x, self.kind.second(x)], 1)

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        roots = cholesky(self.kind.full(self.covars, *self.means.shape))[states]
        noise = torch.randn(*states.shape, self.means.shape[1], generator=generator, dtype=self.means.dtype)
        return self.means[states] + (roots @ noise.to(self.means.device).unsqueeze(-1)).squeeze(-1)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x | z): x [N, F] -> [N, K]."""
        return self.kind.log_density(x, self.means, self.covars)

    def maximised(self, statistics: Tensor, prior: GaussianPrior) -> Gaussian:
        """The M-step; a state without visits keeps its covariance, and its mean unless there is a prior."""
        features = self.means.shape[1]
        moments = Moments(statistics[:, :1], statistics[:, 1 : features + 1], statistics[:, features + 1 :])
        means, covars = self.means, self.covars
        if "m" in self.trained:
            weight = prior.mean_weight + moments.visits
            means = torch.where(weight > 0, (prior.mean_weight * prior.mean + moments.first) / weight, means)
        if "c" in self.trained:
            covars = torch.where(self.kind.visited(moments), self.kind.estimate(moments, means, prior), covars)
        return Gaussian(means, covars, self.kind_name, self.trained)


def outer(left: Tensor, right: Tensor) -> Tensor:
    """The outer product: [..., F], [..., F] -> [..., F, F]."""
    return left.unsqueeze(-1) * right.unsqueeze(-2)


def cholesky(covars: Tensor) -> Tensor:
    """The Cholesky factor of covariances [..., F, F]; jitter is added if one is not positive definite."""
    size = covars.diagonal(dim1=-2, dim2=-1).mean(-1)
    for nudge in (torch.zeros_like(size), torch.full_like(size, JITTER), JITTER * (1 + size)):
        root, failed = torch.linalg.cholesky_ex(covars + torch.diag_embed(nudge[..., None].expand(covars.shape[:-1])))
        if not bool(failed.any()):
            return root
    raise InputError("A covariance is not symmetric and positive definite; use a larger covars_prior or min_covar.")
