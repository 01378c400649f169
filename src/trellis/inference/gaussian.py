"""Exact inference in a linear dynamical system: pure functions over Gaussian potentials, as `discrete` is for chains.

    x_0 ~ prior,  x_t = A x_{t-1} + N(0, Q),  p(y_t | x_t) = exp(-x' Phi x / 2 + v_t' x + c_t).
A dense observation y = C x + N(0, D) has Phi = C' D^-1 C and v = C' D^-1 y, so that all work over time is [h, h]. The
covariances do not depend on what was observed, only on where: they are computed once for all sequences, and no longer
once they have settled. None is inverted, so noise may be singular. With P = Cov(x_t | y_<t), W = (I + P Phi)^-1:
    filter    e = v - Phi m,  x^ = m + V e,  V = W P
    smoother  l_t = W'(e_t + A' l_{t+1}),  x- = m + P l,  L_t = W'Phi + W'A' L_{t+1} A W,  Cov = P - P L P"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError

SETTLED = {torch.float32: 1e-7, torch.float64: 1e-15}  # relative change of a covariance that no longer matters
MISSING = -1


class Normal(NamedTuple):
    """A Gaussian belief."""

    mean: Tensor  # [h] or [B, h]
    cov: Tensor  # [h, h]


class Dynamics(NamedTuple):
    """x_t = A x_{t-1} + N(0, Q)."""

    transition: Tensor  # A [h, h]
    noise: Tensor  # Q [h, h]


class Observation(NamedTuple):
    """y_t = C x_t + N(0, D)."""

    loadings: Tensor  # C [p, h]
    noise: Tensor  # D [p, p]


class Potentials(NamedTuple):
    """What each step says about its x_t; steps that see alike share Phi. A row of -1 is a missing observation."""

    information: Tensor  # Phi [N, h, h]
    rows: Tensor  # [B, T] int64
    vectors: Tensor  # v [B, T, h]
    constants: Tensor  # c [B, T]


class Filtered(NamedTuple):
    """What a forward pass knows; all [B, ...] are zero past the end of a sequence."""

    log_norms: Tensor  # [B, T]: log p(y_t | y_<t)
    means: Tensor  # [B, T, h]: E[x_t | y_<=t]
    covs: Tensor  # [B or 1, T, h, h]: of the same


class Smoothed(NamedTuple):
    """What a forward and a backward pass know together."""

    log_likelihood: Tensor  # [B]
    means: Tensor  # [B, T, h]: E[x_t | y]
    covs: Tensor  # [B or 1, T, h, h]: Cov(x_t | y)
    lagged: Tensor  # [B or 1, T - 1, h, h]: Cov(x_{t+1}, x_t | y)


class Covs(NamedTuple):
    """The covariances of the steps that differ, [B or 1, S, h, h] each; step t has those of `at[t]`."""

    priors: Tensor  # P
    shrink: Tensor  # W
    log_dets: Tensor  # [B or 1, S]: log |I + P Phi|
    phi: Tensor
    at: Tensor  # [T]

    def filtered(self) -> Tensor:
        """V."""
        return symmetric(self.shrink @ self.priors)


class Means(NamedTuple):
    """[B, T, h] each."""

    predicted: Tensor  # m
    errors: Tensor  # e
    filtered: Tensor  # x^


def observe(observation: Observation, values: Tensor) -> Potentials:
    """Potentials of dense observations [B, T, p]; NaN is missing, a whole step or a part of it."""
    seen = ~values.isnan()
    patterns, rows = seen.reshape(-1, values.shape[-1]).unique(dim=0, return_inverse=True)
    rows = rows.view(values.shape[:2])
    values = values.nan_to_num(0.0)
    loadings = patterns.unsqueeze(-1) * observation.loadings  # [N, p, h]
    both = patterns.unsqueeze(-1) & patterns.unsqueeze(-2)
    eye = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    noise = torch.where(both, observation.noise, eye)
    root, failed = torch.linalg.cholesky_ex(noise)
    if bool(failed.any()):
        raise TrellisError("The noise of the observations is not positive definite; give it a positive variance.")
    sensing = torch.cholesky_solve(loadings, root)  # D^-1 C
    half = torch.cholesky_inverse(root)
    vectors, squares = torch.zeros(*rows.shape, loadings.shape[-1]).to(values), torch.zeros(rows.shape).to(values)
    for number in range(len(patterns)):
        here = rows == number
        vectors[here] = values[here] @ sensing[number]
        squares[here] = ((values[here] @ half[number]) * values[here]).sum(-1)
    volume = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + patterns.sum(-1).to(values) * math.log(2 * math.pi)
    rows_seen = rows.masked_fill(~patterns.any(-1)[rows], MISSING)
    return Potentials(loadings.mT @ sensing, rows_seen, vectors, -0.5 * (volume[rows] + squares))


def filter(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Filtered:
    """E[x_t | y_<=t] and its covariance for every step (Kalman)."""
    potentials, inside = within(potentials, lengths)
    covs, means = run_forward(prior, dynamics, potentials, inside)
    norms = log_norms(covs, means, potentials, inside)
    return Filtered(norms, means.filtered * inside.unsqueeze(-1), covs.filtered()[:, covs.at])


def log_likelihood(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """log p(y), summed in float64: [B]."""
    potentials, inside = within(potentials, lengths)
    covs, means = run_forward(prior, dynamics, potentials, inside)
    return log_norms(covs, means, potentials, inside).sum(1, dtype=torch.float64)


def smooth(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Smoothed:
    """E[x_t | y] for every step, its covariance, and that of neighbouring steps (Rauch-Tung-Striebel)."""
    potentials, inside = within(potentials, lengths)
    covs, means = run_forward(prior, dynamics, potentials, inside)
    total = log_norms(covs, means, potentials, inside).sum(1, dtype=torch.float64)
    smoothed = smooth_means(covs, means, dynamics.transition) * inside.unsqueeze(-1)
    return Smoothed(total, smoothed, *smooth_covs(covs, dynamics.transition, inside))


def smoothed_means(prior: Normal, dynamics: Dynamics, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """E[x_t | y] alone: [B, T, h], zero past the end; O(h^2) a step once the covariances have settled."""
    potentials, inside = within(potentials, lengths)
    covs, means = run_forward(prior, dynamics, potentials, inside)
    return smooth_means(covs, means, dynamics.transition) * inside.unsqueeze(-1)


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


def within(potentials: Potentials, lengths: Tensor | None) -> tuple[Potentials, Tensor]:
    """The potentials with nothing said where nothing was observed, and which steps come before the ends: [B, T]."""
    rows = potentials.rows
    steps = torch.arange(rows.shape[1], device=rows.device)
    inside = torch.ones_like(rows, dtype=torch.bool) if lengths is None else steps < lengths[:, None]
    said = inside & (rows != MISSING)
    vectors = potentials.vectors.masked_fill(~said.unsqueeze(-1), 0.0)
    constants = potentials.constants.masked_fill(~said, 0.0)
    return Potentials(potentials.information, rows.masked_fill(~inside, MISSING), vectors, constants), inside


def shared_row(potentials: Potentials, inside: Tensor) -> Tensor | None:
    """The one row that all steps before the ends have; None where they differ."""
    found = potentials.rows[inside]
    alike = found.numel() > 0 and int(found[0]) != MISSING and bool((found == found[0]).all())
    return found[0] if alike else None


def run_forward(prior: Normal, dynamics: Dynamics, potentials: Potentials, inside: Tensor) -> tuple[Covs, Means]:
    shared = shared_row(potentials, inside)
    covs = forward_covs(prior, dynamics, potentials, shared)
    ended = (
        None if shared is None or bool(inside.all()) else ~inside
    )  # where Phi goes on although the sequence does not
    return covs, forward_means(prior, dynamics.transition, potentials.vectors, covs, ended)


def forward_covs(prior: Normal, dynamics: Dynamics, potentials: Potentials, shared: Tensor | None) -> Covs:
    """For each sequence, or once for all of them where they share the `shared` row; then only until they settle."""
    steps, (transition, noise) = potentials.rows.shape[1], dynamics
    information = torch.cat([potentials.information, torch.zeros_like(potentials.information[:1])])  # [-1]: nothing
    rows = potentials.rows if shared is None else shared.expand(1, steps)
    cov = prior.cov.expand(len(rows), -1, -1)
    eye, settled, parts = torch.eye(cov.shape[-1]).to(cov), SETTLED[cov.dtype], []
    for t in range(steps):
        phi = information[rows[:, t]]
        factors = torch.linalg.lu_factor(eye + cov @ phi)
        shrink = torch.linalg.lu_solve(*factors, eye.expand_as(cov))
        log_det = factors.LU.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        parts.append((cov, shrink, log_det, phi))
        before, cov = cov, transition @ symmetric(shrink @ cov) @ transition.T + noise
        if shared is not None and bool((cov - before).abs().max() <= settled * cov.abs().max()):
            break
    at = torch.arange(steps, device=cov.device).clamp(max=len(parts) - 1)
    priors, shrinks, log_dets, phis = (torch.stack(part, 1) for part in zip(*parts, strict=True))
    return Covs(priors, shrinks, log_dets, phis, at)


def forward_means(prior: Normal, transition: Tensor, vectors: Tensor, covs: Covs, ended: Tensor | None) -> Means:
    gains, at = covs.filtered(), covs.at.tolist()
    mean = prior.mean.expand(len(vectors), -1)
    found = []
    for t, step in enumerate(at):
        error = vectors[:, t] - times(covs.phi[:, step], mean)
        if ended is not None:
            error = error.masked_fill(ended[:, t, None], 0.0)
        filtered = mean + times(gains[:, step], error)
        found.append((mean, error, filtered))
        mean = filtered @ transition.T
    predicted, errors, means = (torch.stack(part, 1) for part in zip(*found, strict=True))
    return Means(predicted, errors, means)


def times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """One matrix for all, or each its own, times vectors: [B or 1, h, h], [B, h] -> [B, h]."""
    if len(matrices) == 1:
        return vectors @ matrices[0].T
    return (matrices @ vectors.unsqueeze(-1)).squeeze(-1)


def log_norms(covs: Covs, means: Means, potentials: Potentials, inside: Tensor) -> Tensor:
    """log p(y_t | y_<t): [B, T], zero past the end."""
    m, e, filtered = means
    gained = (m * (potentials.vectors + e)).sum(-1) + (e * (filtered - m)).sum(-1)
    return (potentials.constants + 0.5 * (gained - covs.log_dets[:, covs.at])) * inside


def smooth_means(covs: Covs, means: Means, transition: Tensor) -> Tensor:
    back, at = covs.shrink.mT, covs.at.tolist()
    adjoint, found = torch.zeros_like(means.errors[:, 0]), []
    for t in range(len(at) - 1, -1, -1):
        adjoint = times(back[:, at[t]], means.errors[:, t] + adjoint @ transition)
        found.append(means.predicted[:, t] + times(covs.priors[:, at[t]], adjoint))
    return torch.stack(found[::-1], 1)


def smooth_covs(covs: Covs, transition: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Cov(x_t | y) and Cov(x_{t+1}, x_t | y); for one sequence where all have the same."""
    ends, at = inside[:1] if bool(inside.all()) else inside, covs.at.tolist()
    settled, step = SETTLED[transition.dtype], -1
    adjoint = before = torch.zeros_like(covs.priors[:, 0])
    found = []
    for t in range(len(at) - 1, -1, -1):
        still = at[t] == step and len(ends) == 1 and len(adjoint) == 1
        if not still or bool((adjoint - before).abs().max() > settled * adjoint.abs().max()):
            step, before, W = at[t], adjoint, covs.shrink[:, at[t]]
            seen = W.mT @ (covs.phi[:, step] + transition.T @ adjoint @ transition @ W)
            adjoint = symmetric(seen) * ends[:, t, None, None]
        found.append(adjoint)
    stacked, priors, ends = torch.stack(found[::-1], 1), covs.priors[:, covs.at], ends[..., None, None]
    moved = transition @ covs.filtered()[:, covs.at[:-1]]
    lagged = moved - priors[:, 1:] @ (stacked[:, 1:] @ moved)
    return symmetric(priors - priors @ stacked @ priors) * ends, lagged * ends[:, 1:]


def square_root(matrix: Tensor) -> Tensor:
    """R with R R' = matrix, which may be singular."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt()


def symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)
