"""Numba: the passes of a Kalman smoother whose covariances never settle, since steps see different things.

The recursions are those of `trellis.inference.kalman`; rows of -1 saw nothing."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def forward(
    worker, workers, mean, cov, transition, noise, information, rows, vectors, eye,
    priors, shrink, log_dets, predicted, errors, filtered,
):  # fmt: skip
    """Fill P, W [B, T, h, h], log |I + P Phi| [B, T] and m, e, x^ [B, T, h]."""
    for b in range(worker, rows.shape[0], workers):
        P, m = cov.copy(), mean[b].copy()
        for t in range(rows.shape[1]):
            V, x, e = P, m, np.zeros_like(m)
            priors[b, t], shrink[b, t], log_dets[b, t] = P, eye, 0
            if rows[b, t] >= 0:
                phi = information[rows[b, t]]
                inner = eye + P @ phi
                W = np.linalg.inv(inner)
                V = W @ P
                V = (V + V.T) / 2
                e = vectors[b, t] - phi @ m
                x = m + V @ e
                shrink[b, t], log_dets[b, t] = W, np.linalg.slogdet(inner)[1]
            predicted[b, t], errors[b, t], filtered[b, t] = m, e, x
            P, m = transition @ V @ transition.T + noise, transition @ x


@njit(nogil=True, cache=True)
def backward_means(worker, workers, transition, shrink, priors, predicted, errors, smoothed):
    """Fill x- [B, T, h]."""
    back = transition.T.copy()
    for b in range(worker, errors.shape[0], workers):
        adjoint = np.zeros_like(errors[b, 0])
        for t in range(errors.shape[1] - 1, -1, -1):
            adjoint = shrink[b, t].T @ (errors[b, t] + back @ adjoint)
            smoothed[b, t] = predicted[b, t] + priors[b, t] @ adjoint


@njit(nogil=True, cache=True)
def backward_covs(worker, workers, transition, information, rows, lengths, priors, shrink):
    """Turn P into Cov(x_t | y) and W into Cov(x_{t+1}, x_t | y), zero from the ends on: [B, T, h, h]."""
    back = transition.T.copy()
    for b in range(worker, rows.shape[0], workers):
        adjoint = np.zeros_like(transition)
        later = np.zeros_like(transition)
        priors[b, lengths[b] :] = 0
        shrink[b, lengths[b] :] = 0
        for t in range(lengths[b] - 1, -1, -1):
            P, W = priors[b, t].copy(), shrink[b, t].copy()
            V = W @ P
            moved = transition @ ((V + V.T) / 2)
            shrink[b, t] = moved - later @ (adjoint @ moved) if t + 1 < lengths[b] else later
            seen = back @ (adjoint @ (transition @ W))
            if rows[b, t] >= 0:
                seen = seen + information[rows[b, t]]
            adjoint = W.T @ seen
            adjoint = (adjoint + adjoint.T) / 2
            cov = P - P @ (adjoint @ P)
            priors[b, t], later = (cov + cov.T) / 2, P
