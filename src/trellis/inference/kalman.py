"""The two passes over time of a Kalman smoother, in terms of potentials; `trellis.inference.gaussian` is their face.

With m, P the mean and covariance of x_t given y_<t, and W = (I + P Phi)^-1:
    forward   e = v - Phi m,  x^ = m + V e,  V = W P
    backward  l_t = W'(e_t + A' l_{t+1}),  x- = m + P l,  L_t = W'Phi + W'A' L_{t+1} A W,  Cov = P - P L P"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

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


class Potentials(NamedTuple):
    """What each step says about its x_t; steps that see alike share Phi. A row of -1 is a missing observation."""

    information: Tensor  # Phi [N, h, h]
    rows: Tensor  # [B, T] int64
    vectors: Tensor  # v [B, T, h]
    constants: Tensor  # c [B, T]


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


def symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)
