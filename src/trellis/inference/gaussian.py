"""Exact inference in a linear dynamical system: pure functions of Gaussian potentials, the counterpart of `discrete`.

    x_0 ~ prior,  x_t = A x_{t-1} + N(0, Q),  p(y_t | x_t) = exp(-x' Phi x / 2 + v_t' x + c_t).
A dense observation y = C x + N(0, D) has Phi = C' D^-1 C and v = C' D^-1 y, so the recursions use only [h, h] matrices.
The covariances depend only on which values were observed. They are computed once for all sequences, until they
converge; later steps are batched. No covariance is inverted, so noise may be singular. The recursions are in
`trellis.inference.kalman`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference.beliefs import MISSING, Covs, Dynamics, Means, Normal, Potentials, Shared
from trellis.inference.kalman import forward_covs, log_norms, run_forward, smooth_covs, smooth_means, within
from trellis.inference.observing import HELD, Observation, observe

NEAR = 1 << 21  # vector entries processed at a time, to fit in cache


class Filtered(NamedTuple):
    """The result of the forward pass; all tensors [B, T, ...] are zero in the padding."""

    log_norms: Tensor  # [B, T]: log p(y_t | y_<t)
    means: Tensor  # [B, T, h]: E[x_t | y_<=t]
    covs: Shared  # their covariances, per sequence or shared


class Smoothed(NamedTuple):
    """The result of the forward and backward passes."""

    log_likelihood: Tensor  # [B]
    means: Tensor  # [B, T, h]: E[x_t | y]
    covs: Shared  # Cov(x_t | y), per sequence or shared
    lagged: Shared  # Cov(x_{t+1}, x_t | y), T - 1 of them


def filter(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Filtered:
    """Filtered E[x_t | y_<=t] and its covariance for every step (Kalman filter)."""
    potentials, inside = within(potentials, lengths)
    covs, means = run_forward(prior, dynamics, potentials, inside)
    norms = log_norms(covs, means, potentials, inside)
    return Filtered(norms, means.filtered * inside.unsqueeze(-1), Shared(covs.filtered(), covs.at))


def log_densities(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """log p(y_t | y_<t): [B, T], zero in the padding."""
    return in_groups(log_norms, prior, dynamics, *within(potentials, lengths))


def log_likelihood(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """log p(y), summed in float64: [B]."""
    return log_densities(prior, dynamics, potentials, lengths).sum(1, dtype=torch.float64)


def smooth(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Smoothed:
    """Smoothed E[x_t | y] of every step, its covariance, and the covariance of adjacent steps (RTS smoother)."""
    potentials, inside = within(potentials, lengths)
    covs, means = run_forward(prior, dynamics, potentials, inside)
    total = log_norms(covs, means, potentials, inside).sum(1, dtype=torch.float64)
    smoothed = smooth_means(covs, means, dynamics.transition) * inside.unsqueeze(-1)
    return Smoothed(total, smoothed, *smooth_covs(covs, dynamics.transition, inside))


def smoothed_means(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """Smoothed means E[x_t | y] only: [B, T, h], zero in the padding; O(h^2) per step once the covariances converge."""

    def smoothed(covs: Covs, means: Means, potentials: Potentials, inside: Tensor) -> Tensor:
        return smooth_means(covs, means, dynamics.transition) * inside.unsqueeze(-1)

    return in_groups(smoothed, prior, dynamics, *within(potentials, lengths))


def in_groups(
    work: Callable[[Covs, Means, Potentials, Tensor], Tensor],
    prior: Normal,
    dynamics: Dynamics,
    potentials: Potentials,
    inside: Tensor,
) -> Tensor:
    """Process sequences [B, ...] in groups: first the sequences without gaps, which share covariances, then the
    others."""
    rows, size = potentials.rows, prior.cov.shape[-1]
    if not rows.numel():
        return work(*run_forward(prior, dynamics, potentials, inside), potentials, inside)
    common = rows[inside].mode().values if bool(inside.any()) else rows.new_tensor(MISSING)
    whole = ((rows == common) | ~inside).all(1) & (common != MISSING)
    shared = forward_covs(prior, dynamics, potentials, common) if bool(whole.any()) else None
    near = NEAR if rows.device.type == "cpu" else HELD
    groups = [(group, shared) for group in few(whole, near // (rows.shape[1] * size))]
    groups += [(group, None) for group in few(~whole, HELD // (rows.shape[1] * size**2))]
    parts = []
    for group, covs in groups:
        mean = prior.mean[group] if prior.mean.dim() == 2 else prior.mean
        picked = Potentials(potentials.information, *(part[group] for part in potentials[1:]))
        found = run_forward(Normal(mean, prior.cov), dynamics, picked, inside[group], covs)
        parts.append(work(*found, picked, inside[group]))
    return torch.cat(parts)[torch.cat([group for group, _ in groups]).argsort()]


def few(chosen: Tensor, most: int) -> tuple[Tensor, ...]:
    """Indices of the chosen entries, in chunks of at most `most`."""
    places = chosen.nonzero()[:, 0]
    return places.split(max(1, most)) if len(places) else ()


def sample_prior(
    prior: Normal, dynamics: Dynamics, steps: int, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """Sample n paths from the system: [n, steps, h]."""
    size, like = len(dynamics.transition), dynamics.transition
    noise = torch.randn(n, steps, size, generator=generator, dtype=like.dtype, device=like.device)
    root, start = square_root(dynamics.noise), square_root(prior.cov)
    path = [prior.mean + noise[:, 0] @ start.T]
    for t in range(1, steps):
        path.append(path[-1] @ dynamics.transition.T + noise[:, t] @ root.T)
    return torch.stack(path, 1)


def emit(observation: Observation, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Sample observations [..., p], given the states [..., h]."""
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
    """Sample one path from p(x | y) for each sequence [B, T, p], which may have missing values: [B, T, h].

    A path and its observations are sampled from the prior. The path is then corrected by smoothing the difference
    between the given and the sampled observations."""
    path = sample_prior(prior, dynamics, values.shape[1], len(values), generator)
    difference = values - emit(observation, path, generator)
    centred = Normal(torch.zeros_like(prior.mean), prior.cov)
    return path + smoothed_means(centred, dynamics, observe(observation, difference))


def square_root(matrix: Tensor) -> Tensor:
    """R with R R' = matrix, which may be singular."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt()
