"""Emissions from mixtures of Gaussians, one mixture per state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.emissions.base import Emission, Vectors
from trellis.emissions.covariances import COVARIANCES, outer
from trellis.emissions.gaussian import Gaussian
from trellis.types import Potentials

CHUNK = 1 << 22  # numbers of centred observations in memory at a time


class MixturePrior(NamedTuple):
    """Priors of the M-step, as hmmlearn defines them: Dirichlet pseudocounts for the weights [K, M], a normal prior for
    the means, and, for the covariances, values that are added to their scatter and visits."""

    weights: Tensor
    mean: Tensor  # [K, M, F]
    mean_weight: Tensor  # [K, M, 1]
    scatter: Tensor  # in the shape of the covariances
    visits: Tensor  # broadcasts to `scatter`


class GaussianMixture(Emission):
    """p(x | z) = sum_m weights[z, m] N(x; means[z, m], covars of z and m): weights [K, M], means [K, M, F].

    Covariances are spherical [K, M], diag [K, M, F], full [K, M, F, F], or tied within a state [K, F, F]. The
    statistics [K, M, 1 + F + D] of a component are expected sums of 1, of x, and of the squares or products of
    x - means. As in hmmlearn, covariances are estimated around the means of the previous iteration. `trained` lists
    what the M-step estimates: w (weights), m (means), c (covariances)."""

    def __init__(self, weights: Tensor, means: Tensor, covars: Tensor, kind: str, trained: str = "wmc") -> None:
        self.weights, self.means, self.covars, self.num_states = weights, means, covars, len(means)
        self.kind, self.trained = kind, trained

    @property
    def per_state(self) -> dict[str, int]:
        return {"weights": 0, "means": 0, "covars": 0}

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        return Potentials(
            self.log_joint(observations.values).logsumexp(-1), observations.rows, all_observed=all_observed
        )

    def components(self) -> Gaussian:
        """All components as the states of one Gaussian emission."""
        covars = self.covars
        if self.kind == "tied":
            covars = covars.unsqueeze(1).expand(*self.means.shape, -1)
        kind = "full" if self.kind == "tied" else self.kind
        return Gaussian(self.means.flatten(0, 1), covars.flatten(0, 1), kind)

    def matched(self) -> Gaussian:
        """Normal distributions with the mean and covariance of each mixture."""
        means = (self.weights.unsqueeze(-1) * self.means).sum(1)
        parts, off = self.components(), self.means - means.unsqueeze(1)
        within = parts.kind.full(parts.covars, *parts.means.shape).view(*self.means.shape, -1) + outer(off, off)
        return Gaussian(means, (self.weights[..., None, None] * within).sum(1), "full")

    def log_joint(self, x: Tensor) -> Tensor:
        """log p(x, m | z): [N, F] -> [N, K, M]."""
        return self.components().log_density(x).view(-1, *self.weights.shape) + self.weights.log()

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        (states, mixed, features), products = self.means.shape, self.kind in ("full", "tied")
        total = visits.new_zeros(states, mixed, 1 + features + (features**2 if products else features))
        size = max(1, CHUNK // self.means.numel())
        for x, visit in zip(observations.values.split(size), visits.split(size), strict=True):
            log_joint = self.log_joint(x)
            shares = visit.unsqueeze(-1) * (log_joint - log_joint.logsumexp(-1, keepdim=True)).exp().nan_to_num(0.0)
            centred = x - self.means.view(-1, 1, features)  # [K M, n, F]
            weighted = shares.flatten(1).T.unsqueeze(-1) * centred
            scatter = weighted.mT @ centred if products else (weighted * centred).sum(1)
            total[..., 0] += shares.sum(0)
            total[..., 1 : features + 1] += torch.einsum("nkm,nf->kmf", shares, x)
            total[..., features + 1 :] += scatter.view(states, mixed, -1)
        return total

    def maximised(self, statistics: Tensor, prior: MixturePrior) -> GaussianMixture:
        """The M-step; a component without visits keeps its mean and covariance."""
        features = self.means.shape[-1]
        visits, first = statistics[..., :1], statistics[..., 1 : features + 1]
        weights, means, covars = self.weights, self.means, self.covars
        if "w" in self.trained:
            weights = most_probable(visits.squeeze(-1), prior.weights, weights, keep_zeros=False)
        if "m" in self.trained:
            weight = prior.mean_weight + visits
            means = torch.where(weight > 0, (prior.mean_weight * prior.mean + first) / weight, means)
        if "c" in self.trained:
            covars = self.estimate(visits.squeeze(-1), statistics[..., features + 1 :], means, prior)
        return GaussianMixture(weights, means, covars, self.kind, self.trained)

    def estimate(self, visits: Tensor, scatter: Tensor, means: Tensor, prior: MixturePrior) -> Tensor:
        """The covariances, from visits [K, M] and scatter [K, M, D] around the old means."""
        off = means - prior.mean
        if self.kind in ("full", "tied"):
            scatter = scatter.unflatten(-1, (means.shape[-1], -1)) + outer(prior.mean_weight * off, off)
        else:
            scatter = scatter + prior.mean_weight * off.square()
        if self.kind == "tied":
            visits, scatter = visits.sum(-1), scatter.sum(1)
        elif self.kind == "spherical":
            visits, scatter = visits * means.shape[-1], scatter.sum(-1)
        visits = visits.view(*visits.shape, *[1] * (self.covars.dim() - visits.dim())) + prior.visits
        return torch.where(visits > 0, (scatter + prior.scatter) / visits, self.covars)

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        chosen = torch.multinomial(self.weights[states.flatten()].cpu(), 1, generator=generator).view(states.shape)
        return self.components().sample(states * self.weights.shape[1] + chosen.to(states.device), generator)


def covariance_shape(kind: str, states: int, mixed: int, features: int) -> tuple[int, ...]:
    """The shape of the covariances of a mixture."""
    if kind == "tied":
        return states, features, features
    return states, *COVARIANCES[kind].shape(mixed, features)
