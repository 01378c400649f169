"""Emissions with a posterior over their parameters, for variational inference.

Their potentials are E[log p(x | z, parameters)] under the posterior, and their M-step updates the posterior.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trellis.dirichlet import divergence, expected_log
from trellis.emissions.base import Emission, Vectors
from trellis.emissions.categorical import Categorical
from trellis.emissions.covariances import Moments, outer
from trellis.emissions.gaussian import Gaussian
from trellis.errors import InputError
from trellis.types import Potentials


class Bayesian(Protocol):
    """The methods that an emission needs for variational inference, in addition to those of `Emission`."""

    @abstractmethod
    def divergence(self) -> Tensor:
        """KL(posterior || prior), summed over the states."""

    @abstractmethod
    def mean(self) -> Emission:
        """The emission with the posterior mean as its parameters."""


class DirichletCategorical(Categorical):
    """Categorical emissions with a Dirichlet posterior and prior per state: [V, K] each."""

    def __init__(self, posterior: Tensor, prior: Tensor) -> None:
        super().__init__(expected_log(posterior, 0), None, posterior.shape[1])
        self.posterior, self.prior = posterior, prior

    @property
    def per_state(self) -> dict[str, int]:
        return {"table": 1, "posterior": 1, "prior": 1}

    def maximised(self, statistics: Tensor, prior: object) -> DirichletCategorical:
        return DirichletCategorical(self.prior + statistics, self.prior)

    def divergence(self) -> Tensor:
        return divergence(self.posterior.T, self.prior.T, self.table.T).sum()

    def mean(self) -> Categorical:
        return Categorical((self.posterior / self.posterior.sum(0)).log(), None, self.num_states)


class NormalWishart(NamedTuple):
    """A precision ~ Wishart(dof, scale^-1) and a mean ~ N(mean, (beta precision)^-1) for each state."""

    mean: Tensor  # [K, F]
    beta: Tensor  # [K]
    dof: Tensor  # [K]; [] if tied
    scale: Tensor  # in the shape of the covariances: spherical [K], diag [K, F], full [K, F, F], tied [F, F]


class WishartGaussian(Emission):
    """Gaussian emissions with a normal-Wishart posterior and prior per state. `trained` lists what the M-step updates:
    m (means), c (covariances).

    As in hmmlearn, spherical and diagonal covariances have the dof and the divergence of a Wishart distribution whose
    scale matrix is spherical or diagonal. Potentials leave out the constant -F/2 log 2 pi."""

    def __init__(self, posterior: NormalWishart, prior: NormalWishart, kind: str, trained: str = "mc") -> None:
        self.posterior, self.prior, self.trained = posterior, prior, trained
        dof = posterior.dof.view(-1, *[1] * (posterior.scale.dim() - 1)) if kind != "tied" else posterior.dof
        self.gaussian = Gaussian(posterior.mean, posterior.scale / dof, kind)
        self.num_states, self.kind = len(posterior.mean), self.gaussian.kind

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        table = self.gaussian.log_density(observations.values) + self.correction()
        return Potentials(table, observations.rows, all_observed=all_observed)

    def correction(self) -> Tensor:
        """E[log N(x; mean, precision^-1)] - log N(x; E mean, (E precision)^-1), without the constant: [K]."""
        features, (_, beta, dof, _) = self.posterior.mean.shape[1], self.posterior
        spread = expected_log_det(dof, features) - features * dof.log() + features * math.log(2 * math.pi)
        return (spread - features / beta) / 2

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        return self.gaussian.statistics(observations, visits)

    def take(self, states: Tensor) -> WishartGaussian:
        def chosen(one: NormalWishart) -> NormalWishart:
            precisions = one[2:] if not self.kind.by_state else (one.dof[states], one.scale[states])
            return NormalWishart(one.mean[states], one.beta[states], *precisions)

        return WishartGaussian(chosen(self.posterior), chosen(self.prior), self.gaussian.kind_name, self.trained)

    def maximised(self, statistics: Tensor, prior: object) -> WishartGaussian:
        features, kind, origin = self.posterior.mean.shape[1], self.gaussian.kind_name, self.gaussian.origin
        moments = Moments(statistics[:, :1], statistics[:, 1 : features + 1], statistics[:, features + 1 :])
        mean, beta, dof, scale = self.posterior
        if "m" in self.trained:
            beta = self.prior.beta + moments.visits.squeeze(-1)
            pulled = self.prior.beta[:, None] * (self.prior.mean - origin)
            mean = origin + (pulled + moments.first) / beta[:, None]
        if "c" in self.trained:
            visits = moments.visits.squeeze(-1)
            dof = self.prior.dof + (visits.sum() if kind == "tied" else visits)
            scale = self.prior.scale + self.scatter(moments, mean)
        return WishartGaussian(NormalWishart(mean, beta, dof, scale), self.prior, kind, self.trained)

    def scatter(self, moments: Moments, mean: Tensor) -> Tensor:
        """The scatter around the posterior means, in the shape of the covariances; for spherical ones, its mean over
        features."""
        off, kind = mean - self.prior.mean, self.gaussian.kind_name
        scatter = self.kind.scatter(moments, mean - self.gaussian.origin)
        if kind in ("full", "tied"):
            scatter = scatter + outer(self.prior.beta[:, None] * off, off)
            return scatter.sum(0) if kind == "tied" else scatter
        scatter = scatter + self.prior.beta[:, None] * off.square()
        return scatter.mean(1) if kind == "spherical" else scatter

    def divergence(self) -> Tensor:
        """KL(posterior || prior): of the means, and of the precisions (once if they are tied)."""
        (states, features), posterior, prior = self.posterior.mean.shape, self.posterior, self.prior
        tied = self.gaussian.kind_name == "tied"
        ours, theirs = (self.kind.full(one.scale, states, features) for one in (posterior, prior))
        off = (posterior.mean - prior.mean).unsqueeze(-1)
        ratio = prior.beta / posterior.beta
        apart = (off.mT @ solve(ours, off)).flatten() * posterior.dof
        means = (features * (ratio - 1 - ratio.log()) + prior.beta * apart).sum() / 2
        if tied:
            ours, theirs = ours[:1], theirs[:1]
        return means + wishart_divergence(posterior.dof, ours, prior.dof, theirs).sum()

    def mean(self) -> Gaussian:
        return self.gaussian

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.gaussian.sample(states, generator)


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix^-1 right; raises if a covariance is singular."""
    try:
        return torch.linalg.solve(matrix, right)
    except torch.linalg.LinAlgError as error:
        raise InputError("A covariance matrix is singular; rescale the data, or use a larger scale_prior.") from error


def degrees(dof: Tensor, features: int) -> Tensor:
    """(dof - i) / 2 for i = 0, ..., F - 1: [...] -> [..., F]."""
    return (dof.unsqueeze(-1) - torch.arange(features, device=dof.device)) / 2


def expected_log_det(dof: Tensor, features: int) -> Tensor:
    """E log|precision| under a Wishart distribution with unit scale."""
    return torch.digamma(degrees(dof, features)).sum(-1) + features * math.log(2)


def wishart_divergence(dof: Tensor, scale: Tensor, other_dof: Tensor, other: Tensor) -> Tensor:
    """KL(first || other) of Wishart distributions with degrees of freedom [...] and inverse scales [..., F, F]."""
    features = scale.shape[-1]
    log_det, other_det = torch.logdet(scale), torch.logdet(other)
    trace = solve(scale, other).diagonal(dim1=-2, dim2=-1).sum(-1)
    return (
        (dof - other_dof) * torch.digamma(degrees(dof, features)).sum(-1) / 2
        + other_dof * (log_det - other_det) / 2
        + dof * (trace - features) / 2
        + (torch.lgamma(degrees(other_dof, features)) - torch.lgamma(degrees(dof, features))).sum(-1)
    )
