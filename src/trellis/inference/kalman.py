"""The forward and backward recursions of the Kalman smoother, on potentials; the API is `trellis.inference.gaussian`.

Let the mean and covariance of x_t be m and P given y_<t, x^ and V given y_<=t, and x- and Cov given all of y. With
W = (I + P Phi)^-1, they are computed by
    forward   e = v - Phi m,  x^ = m + V e,  V = W P
    backward  l_t = W'(e_t + A' l_{t+1}),  x- = m + P l,  L_t = W'Phi + W'A' L_{t+1} A W,  Cov = P - P L P
Once the covariances have converged, they are not recomputed. From there on, the means follow linear recursions with
constant matrices, which `recur` computes in parallel blocks."""

from collections.abc import Callable

import torch
from torch import Tensor

from trellis.inference.beliefs import MISSING, Covs, Dynamics, Means, Normal, Potentials, Shared, symmetric
from trellis.kernels.kalman import compiled, share

CONVERGED = {torch.float32: 1e-6, torch.float64: 1e-14}  # relative change below which a covariance has converged
BLOCK = 16  # steps of a recursion that are sequential
NOTHING = {torch.float32: 1e-9, torch.float64: 1e-18}  # matrix powers below this are neglected


def within(potentials: Potentials, lengths: Tensor | None) -> tuple[Potentials, Tensor]:
    """The potentials, zero where an observation is missing, and the mask of the steps before each end: [B, T]."""
    rows = potentials.rows
    steps = torch.arange(rows.shape[1], device=rows.device)
    inside = torch.ones_like(rows, dtype=torch.bool) if lengths is None else steps < lengths[:, None]
    observed = inside & (rows != MISSING)
    vectors = potentials.vectors.masked_fill(~observed.unsqueeze(-1), 0.0)
    constants = potentials.constants.masked_fill(~observed, 0.0)
    return Potentials(potentials.information, rows.masked_fill(~inside, MISSING), vectors, constants), inside


def shared_row(potentials: Potentials, inside: Tensor) -> Tensor | None:
    """The row of potentials that all steps before the ends share, or None if they differ."""
    found = potentials.rows[inside]
    alike = found.numel() > 0 and int(found[0]) != MISSING and bool((found == found[0]).all())
    return found[0] if alike else None


def run_forward(
    prior: Normal, dynamics: Dynamics, potentials: Potentials, inside: Tensor, covs: Covs | None = None
) -> tuple[Covs, Means]:
    """The covariances and means of the forward pass; pass `covs` to reuse the covariances of other sequences."""
    if covs is None:
        shared = shared_row(potentials, inside)
        if shared is None and compiled(*prior, *dynamics, potentials.vectors):
            return forward_compiled(prior, dynamics, potentials)
        covs = forward_covs(prior, dynamics, potentials, shared)
    return covs, forward_means(prior, dynamics.transition, potentials.vectors, covs, inside)


def forward_covs(prior: Normal, dynamics: Dynamics, potentials: Potentials, shared: Tensor | None) -> Covs:
    """The covariances of each sequence or, if all steps share the row `shared`, those common to all sequences, up to
    convergence."""
    steps, (transition, noise) = potentials.rows.shape[1], dynamics
    information = torch.cat([potentials.information, torch.zeros_like(potentials.information[:1])])
    rows = potentials.rows if shared is None else shared.expand(1, steps)
    cov = prior.cov.expand(len(rows), -1, -1)
    eye, settled, parts = torch.eye(cov.shape[-1]).to(cov), CONVERGED[cov.dtype], []
    for t in range(steps):
        factors = torch.linalg.lu_factor(eye + cov @ information[rows[:, t]])
        shrink = torch.linalg.lu_solve(*factors, eye.expand_as(cov))
        log_det = factors.LU.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        parts.append((cov, shrink, log_det))
        before, cov = cov, transition @ symmetric(shrink @ cov) @ transition.T + noise
        if shared is not None and bool((cov - before).abs().max() <= settled * cov.abs().max()):
            break
    at = torch.arange(steps, device=cov.device).clamp(max=len(parts) - 1)
    priors, shrinks, log_dets = (torch.stack(part, 1) for part in zip(*parts, strict=True))
    return Covs(priors, shrinks, log_dets, information, rows, at)


def recur(matrix: Tensor, inputs: Tensor) -> Tensor:
    """y_t = y_{t-1} matrix + inputs_t, y_{-1} = 0: [B, T, h].

    Blocks of steps run in parallel, each starting from zero. Then the effect of the state before each block is
    added."""
    batch, steps, size = inputs.shape
    length = min(steps, BLOCK)
    padded = torch.nn.functional.pad(inputs, (0, 0, 0, -steps % length)) if steps % length else inputs
    blocks = padded.view(batch, -1, length, size)
    found = [blocks[:, :, 0]]
    for j in range(1, length):
        found.append(blocks[:, :, j] + found[-1] @ matrix)
    alone = torch.stack(found, 2)
    if steps > length:
        powers = [matrix]
        for _ in range(1, length):
            powers.append(powers[-1] @ matrix)
        ends = found[-1][:, :-1]
        entered = recur(powers[-1], ends) if bool(powers[-1].abs().max() > NOTHING[inputs.dtype]) else ends
        echoes = (entered @ torch.cat(powers, 1)).view(batch, -1, length, size)
        alone = torch.cat([alone[:, :1], alone[:, 1:] + echoes], 1)
    return alone.view(batch, -1, size)[:, :steps]


def forward_means(prior: Normal, transition: Tensor, vectors: Tensor, covs: Covs, inside: Tensor) -> Means:
    gains, mean, predicted = covs.filtered(), prior.mean.expand(len(vectors), -1), []
    for t in range(covs.settled):
        predicted.append(mean)
        filtered = times(covs.shrink[:, t], mean) + times(gains[:, t], vectors[:, t])
        mean = filtered @ transition.T
    found = torch.stack(predicted, 1) if predicted else vectors[:, :0]
    if covs.settled < len(covs.at):
        pushes = vectors[:, covs.settled : -1] @ (transition @ gains[0, -1]).T
        later = recur((transition @ covs.shrink[0, -1]).T, torch.cat([mean.unsqueeze(1), pushes], 1))
        found = torch.cat([found, later], 1)
    errors = (vectors - each(covs, covs.phi, found)) * inside.unsqueeze(-1)
    return Means(found, errors, found + each(covs, lambda step: gains[:, step], errors))


def each(covs: Covs, matrices: Callable[[int], Tensor], vectors: Tensor) -> Tensor:
    """The symmetric matrix of each step times its vector: [B, T, h]. All converged steps are one product."""
    first = [times(matrices(t), vectors[:, t]) for t in range(covs.settled)]
    rest = vectors[:, covs.settled :] @ matrices(-1)[0] if covs.settled < len(covs.at) else vectors[:, :0]
    return torch.cat([torch.stack(first, 1), rest], 1) if first else rest


def forward_compiled(prior: Normal, dynamics: Dynamics, potentials: Potentials) -> tuple[Covs, Means]:
    """`run_forward` in compiled code, for steps with distinct covariances."""
    rows, vectors = potentials.rows, potentials.vectors
    (batch, steps), hidden = rows.shape, vectors.shape[-1]
    priors, shrink = (vectors.new_empty(batch, steps, hidden, hidden) for _ in range(2))
    means, log_dets = Means(*(torch.empty_like(vectors) for _ in range(3))), vectors.new_empty(batch, steps)
    given = prior.mean.expand(batch, -1), prior.cov, *dynamics, potentials.information, rows, vectors
    share("forward", batch, *given, torch.eye(hidden).to(vectors), priors, shrink, log_dets, *means)
    return Covs(priors, shrink, log_dets, potentials.information, rows, torch.arange(steps), True), means


def times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """A shared matrix, or one per sequence, times vectors: [B or 1, h, h], [B, h] -> [B, h]."""
    if len(matrices) == 1:
        return vectors @ matrices[0].T
    return (matrices @ vectors.unsqueeze(-1)).squeeze(-1)


def log_norms(covs: Covs, means: Means, potentials: Potentials, inside: Tensor) -> Tensor:
    """log p(y_t | y_<t): [B, T], zero in the padding."""
    m, e, filtered = means
    gained = (m * (potentials.vectors + e)).sum(-1) + (e * (filtered - m)).sum(-1)
    return (potentials.constants + 0.5 * (gained - covs.log_dets[:, covs.at])) * inside


def smooth_means(covs: Covs, means: Means, transition: Tensor) -> Tensor:
    if covs.compiled:
        smoothed = torch.empty_like(means.errors)
        share("backward_means", len(smoothed), transition, covs.shrink, covs.priors, *means[:2], smoothed)
        return smoothed
    adjoint, later = torch.zeros_like(means.errors[:, 0]), means.errors[:, :0]
    if covs.settled < len(covs.at):
        shrink = covs.shrink[0, -1]
        later = recur(transition @ shrink, means.errors[:, covs.settled :].flip(1) @ shrink).flip(1)
        adjoint = later[:, 0]
    found = []
    for t in range(covs.settled - 1, -1, -1):
        adjoint = times(covs.shrink[:, t].mT, means.errors[:, t] + adjoint @ transition)
        found.append(adjoint)
    adjoints = torch.cat([torch.stack(found[::-1], 1), later], 1) if found else later
    return means.predicted + each(covs, lambda step: covs.priors[:, step], adjoints)


def smooth_covs(covs: Covs, transition: Tensor, inside: Tensor) -> tuple[Shared, Shared]:
    """Cov(x_t | y) and Cov(x_{t+1}, x_t | y) of every sequence, or of one sequence if all share them. May overwrite
    `covs`."""
    if covs.compiled:
        lengths = inside.sum(1)
        share("backward_covs", len(lengths), transition, covs.information, covs.rows, lengths, covs.priors, covs.shrink)
        return Shared(covs.priors, covs.at), Shared(covs.shrink[:, :-1], covs.at[:-1])
    ends, at = inside[:1] if bool(inside.all()) else inside, covs.at.tolist()
    settled, steps, gains = CONVERGED[transition.dtype], len(at), covs.filtered()
    adjoint = torch.zeros_like(covs.priors[:, 0])
    found, lagged, places = [], [], torch.zeros(steps, dtype=torch.int64, device=covs.at.device)
    t = steps - 1
    while t >= 0:
        W, P, before = covs.shrink[:, at[t]], covs.priors[:, at[t]], adjoint
        if t + 1 < steps:
            moved = transition @ gains[:, at[t]]
            lagged.append((moved - covs.priors[:, at[t + 1]] @ (adjoint @ moved)) * ends[:, t + 1, None, None])
        seen = W.mT @ (covs.phi(at[t]) + transition.T @ adjoint @ transition @ W)
        adjoint = symmetric(seen) * ends[:, t, None, None]
        found.append(symmetric(P - P @ adjoint @ P) * ends[:, t, None, None])
        places[t] = len(found) - 1
        still = len(ends) == 1 and len(adjoint) == 1 and t > covs.settled
        if still and bool((adjoint - before).abs().max() <= settled * adjoint.abs().max()):
            places[covs.settled + 1 : t] = len(found) - 1
            t = covs.settled + 1
        t -= 1
    places = len(found) - 1 - places
    moves = torch.stack(lagged[::-1], 1) if lagged else covs.priors[:, :0]
    return Shared(torch.stack(found[::-1], 1), places), Shared(moves, places[:-1])
