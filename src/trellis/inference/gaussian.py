"""Exact inference in a linear dynamical system: pure functions over Gaussian potentials, as `discrete` is for chains.

    x_0 ~ prior,  x_t = A x_{t-1} + N(0, Q),  p(y_t | x_t) = exp(-x' Phi x / 2 + v_t' x + c_t).
A dense observation y = C x + N(0, D) has Phi = C' D^-1 C and v = C' D^-1 y, so that all work over time is [h, h]. The
covariances do not depend on what was observed, only on where: they are computed once for all sequences, and no longer
once they have settled; the steps after that are computed all at once. None is inverted, so noise may be singular. The
passes are in `trellis.inference.kalman`."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from trellis.errors import TrellisError
from trellis.inference.beliefs import MISSING, Dynamics, Normal, Potentials, Shared
from trellis.inference.kalman import log_norms, run_forward, smooth_covs, smooth_means, within

HELD = 1 << 24  # numbers of covariances held at a time, where many steps miss different parts


class Observation(NamedTuple):
    """y_t = C x_t + N(0, D)."""

    loadings: Tensor  # C [p, h]
    noise: Tensor  # D [p, p]


class Filtered(NamedTuple):
    """What a forward pass knows; all [B, ...] are zero past the end of a sequence."""

    log_norms: Tensor  # [B, T]: log p(y_t | y_<t)
    means: Tensor  # [B, T, h]: E[x_t | y_<=t]
    covs: Shared  # of the same, for each sequence or once for all


class Smoothed(NamedTuple):
    """What a forward and a backward pass know together."""

    log_likelihood: Tensor  # [B]
    means: Tensor  # [B, T, h]: E[x_t | y]
    covs: Shared  # Cov(x_t | y), for each sequence or once for all
    lagged: Shared  # Cov(x_{t+1}, x_t | y), one less


def observe(observation: Observation, values: Tensor) -> Potentials:
    """Potentials of dense observations [B, T, p]; NaN is missing, a whole step or a part of it."""
    size, hidden = observation.loadings.shape
    flat = values.reshape(-1, size)
    patterns, rows = distinct_rows(~flat.isnan())
    order, bounds = rows.argsort(stable=True), [0, *torch.bincount(rows).cumsum(0).tolist()]
    flat = flat.nan_to_num(0.0)[order]
    information, vectors, constants = values.new_empty(len(patterns), hidden, hidden), [], []
    held = max(1, HELD // (8 * size**2))
    for begin in range(0, len(patterns), held):
        some, ends = patterns[begin : begin + held], bounds[begin : begin + held + 1]
        sensing, root = whiten(observation, some)
        information[begin : begin + held] = sensing.mT @ sensing
        volumes = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + some.sum(-1).to(values) * math.log(2 * math.pi)
        if ends[-1] - ends[0] == len(some):  # no two steps see alike
            groups = [(sensing, root, volumes, flat[ends[0] : ends[-1], None])]
        else:
            pieces = (flat[first:last] for first, last in pairwise(ends))
            groups = list(zip(sensing, root, volumes, pieces, strict=True))
        for seen, lower, volume, piece in groups:
            white = solve_triangular(lower, piece.mT, upper=False).mT  # root^-1 y
            vectors.append((white @ seen).view(-1, hidden))
            constants.append(-0.5 * (volume + white.square().sum(-1).view(-1)))
    back, shape = order.argsort(), values.shape[:2]
    rows = rows.masked_fill(~patterns.any(-1)[rows], MISSING).view(shape)
    found, levels = torch.cat(vectors)[back].view(*shape, hidden), torch.cat(constants)[back].view(shape)
    return Potentials(information, rows, found, levels)


def distinct_rows(seen: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that differ, and which one each is."""
    if bool(seen.all()):
        return seen[:1], torch.zeros(len(seen), dtype=torch.int64, device=seen.device)
    patterns, rows = seen.unique(dim=0, return_inverse=True)
    return patterns, rows


def whiten(observation: Observation, patterns: Tensor) -> tuple[Tensor, Tensor]:
    """root^-1 C and the root of D, for each pattern of what is seen [N, p]: [N, p, h], [N, p, p]."""
    both = patterns.unsqueeze(-1) & patterns.unsqueeze(-2)
    eye = torch.eye(patterns.shape[-1]).to(observation.noise)
    root, failed = torch.linalg.cholesky_ex(torch.where(both, observation.noise, eye))
    if bool(failed.any()):
        raise TrellisError("The noise of the observations is not positive definite; give it a positive variance.")
    return solve_triangular(root, patterns.unsqueeze(-1) * observation.loadings, upper=False), root


def filter(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Filtered:
    """E[x_t | y_<=t] and its covariance for every step (Kalman)."""
    potentials, inside = within(potentials, lengths)
    covs, means = run_forward(prior, dynamics, potentials, inside)
    norms = log_norms(covs, means, potentials, inside)
    return Filtered(norms, means.filtered * inside.unsqueeze(-1), Shared(covs.filtered(), covs.at))


def log_densities(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """log p(y_t | y_<t): [B, T], zero past the end."""

    def densities(prior: Normal, potentials: Potentials, inside: Tensor) -> Tensor:
        covs, means = run_forward(prior, dynamics, potentials, inside)
        return log_norms(covs, means, potentials, inside)

    return in_groups(densities, prior, *within(potentials, lengths))


def log_likelihood(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """log p(y), summed in float64: [B]."""
    return log_densities(prior, dynamics, potentials, lengths).sum(1, dtype=torch.float64)


def smooth(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Smoothed:
    """E[x_t | y] for every step, its covariance, and that of neighbouring steps (Rauch-Tung-Striebel)."""
    potentials, inside = within(potentials, lengths)
    covs, means = run_forward(prior, dynamics, potentials, inside)
    total = log_norms(covs, means, potentials, inside).sum(1, dtype=torch.float64)
    smoothed = smooth_means(covs, means, dynamics.transition) * inside.unsqueeze(-1)
    return Smoothed(total, smoothed, *smooth_covs(covs, dynamics.transition, inside))


def smoothed_means(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """E[x_t | y] alone: [B, T, h], zero past the end; O(h^2) a step once the covariances have settled."""

    def smoothed(prior: Normal, potentials: Potentials, inside: Tensor) -> Tensor:
        covs, means = run_forward(prior, dynamics, potentials, inside)
        return smooth_means(covs, means, dynamics.transition) * inside.unsqueeze(-1)

    return in_groups(smoothed, prior, *within(potentials, lengths))


def in_groups(
    work: Callable[[Normal, Potentials, Tensor], Tensor], prior: Normal, potentials: Potentials, inside: Tensor
) -> Tensor:
    """Work on sequences [B, ...]: on all without gaps, which share covariances, then on a few others at a time."""
    rows, size = potentials.rows, prior.cov.shape[-1]
    common = rows[inside].mode().values if bool(inside.any()) else rows.new_tensor(MISSING)
    whole = ((rows == common) & (rows != MISSING) | ~inside).all(1)
    if bool(whole.all()):
        return work(prior, potentials, inside)
    gapped = (~whole).nonzero()[:, 0].split(max(1, HELD // (rows.shape[1] * size**2)))
    groups = [group for group in (whole.nonzero()[:, 0], *gapped) if len(group)]
    parts = []
    for group in groups:
        mean = prior.mean[group] if prior.mean.dim() == 2 else prior.mean
        picked = Potentials(potentials.information, *(part[group] for part in potentials[1:]))
        parts.append(work(Normal(mean, prior.cov), picked, inside[group]))
    return torch.cat(parts)[torch.cat(groups).argsort()]


def sample_prior(
    prior: Normal, dynamics: Dynamics, steps: int, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """n paths from the system itself: [n, steps, h]."""
    size, like = len(dynamics.transition), dynamics.transition
    noise = torch.randn(n, steps, size, generator=generator, dtype=like.dtype, device=like.device)
    root, start = square_root(dynamics.noise), square_root(prior.cov)
    path = [prior.mean + noise[:, 0] @ start.T]
    for t in range(1, steps):
        path.append(path[-1] @ dynamics.transition.T + noise[:, t] @ root.T)
    return torch.stack(path, 1)


def emit(observation: Observation, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Observations [..., p] of states [..., h]."""
    mean = states @ observation.loadings.T
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + noise @ square_root(observation.noise).T


def sample_posterior(
    prior: Normal,
    dynamics: Dynamics,
    observation: Observation,
    values: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One path from p(x | y) for each sequence [B, T, p], gaps allowed: [B, T, h].

    A path and its observations are drawn from the system, and moved by what the true observations say in difference."""
    path = sample_prior(prior, dynamics, values.shape[1], len(values), generator)
    difference = values - emit(observation, path, generator)
    centred = Normal(torch.zeros_like(prior.mean), prior.cov)
    return path + smoothed_means(centred, dynamics, observe(observation, difference))


def square_root(matrix: Tensor) -> Tensor:
    """R with R R' = matrix, which may be singular."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt()
