"""The Kalman smoother for covariances that never converge, because observation patterns vary (numba).

The recursions and their symbols are those of `trellis.inference.kalman`. `rows` holds the index of each step's pattern
of observed components, or -1 if nothing is observed."""

import math

import numpy as np
from numba import njit

BLOCK = 16  # rows per block of a triangular solve


@njit(nogil=True, cache=True)
def sense(
    worker, workers, loadings, noise, values, patterns, rows, order, begins,
    information, vectors, constants,
):  # fmt: skip
    """Write C' D^-1 C [N, h, h], C' D^-1 y [S, h] and log N(y; 0, D) [S] for the observed components of y, where C is
    `loadings`, D is `noise`, and y is `values`.

    The steps in `order` between two consecutive `begins` have the same pattern, so [C y]' D^-1 [C y] is computed for
    all of them in one product."""
    hidden = loadings.shape[1]
    for job in range(worker, len(begins), workers):
        steps = order[begins[job] : begins[job + 1] if job + 1 < len(begins) else len(order)]
        row = rows[steps[0]]
        seen = np.flatnonzero(patterns[row])
        size = len(seen)
        both = np.empty((size, hidden + len(steps)), values.dtype)
        spread = np.empty((size, size), values.dtype)
        for i in range(size):
            both[i, :hidden] = loadings[seen[i]]
            for k in range(len(steps)):
                both[i, hidden + k] = values[steps[k], seen[i]]
            for j in range(size):
                spread[i, j] = noise[seen[i], seen[j]]
        root = np.linalg.cholesky(spread)
        divide(root, both)
        gram = np.dot(both.T, both)
        volume = size * math.log(2 * math.pi)
        for i in range(size):
            volume += 2 * math.log(root[i, i])
        if begins[job] == 0 or rows[order[begins[job] - 1]] != row:
            information[row] = gram[:hidden, :hidden]
        for k in range(len(steps)):
            vectors[steps[k]] = gram[hidden + k, :hidden]
            constants[steps[k]] = -0.5 * (volume + gram[hidden + k, hidden + k])


@njit(nogil=True, cache=True)
def divide(root, columns):
    """Overwrite `columns` with root^-1 columns, where root is lower triangular."""
    for begin in range(0, len(root), BLOCK):
        end = min(begin + BLOCK, len(root))
        if begin:
            columns[begin:end] -= np.dot(root[begin:end, :begin].copy(), columns[:begin])
        for i in range(begin, end):
            for j in range(begin, i):
                subtract(columns[i], root[i, j], columns[j])
            columns[i] /= root[i, i]


@njit(nogil=True, cache=True)
def subtract(target, factor, vector):
    for k in range(len(target)):
        target[k] -= factor * vector[k]


@njit(nogil=True, cache=True)
def forward(
    worker, workers, mean, cov, transition, noise, information, rows, vectors, eye,
    priors, shrink, log_dets, predicted, errors, filtered,
):  # fmt: skip
    """The forward pass: write P to `priors`, W to `shrink` [B, T, h, h], log |I + P Phi| to `log_dets` [B, T], and m,
    e, x^ to `predicted`, `errors`, `filtered` [B, T, h]."""
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
    """Write the smoothed means E(x_t | y) [B, T, h]."""
    back = transition.T.copy()
    for b in range(worker, errors.shape[0], workers):
        adjoint = np.zeros_like(errors[b, 0])
        for t in range(errors.shape[1] - 1, -1, -1):
            adjoint = shrink[b, t].T @ (errors[b, t] + back @ adjoint)
            smoothed[b, t] = predicted[b, t] + priors[b, t] @ adjoint


@njit(nogil=True, cache=True)
def backward_covs(worker, workers, transition, information, rows, lengths, priors, shrink):
    """Replace P by Cov(x_t | y) and W by Cov(x_{t+1}, x_t | y), zero in the padding: [B, T, h, h]."""
    back = transition.T.copy()
    for b in range(worker, rows.shape[0], workers):
        adjoint = np.zeros_like(transition)  # L_{t+1}
        gained = np.zeros_like(transition)  # P_{t+1} L_{t+1}
        priors[b, lengths[b] :] = 0
        shrink[b, lengths[b] :] = 0
        for t in range(lengths[b] - 1, -1, -1):
            P = priors[b, t].copy()
            if rows[b, t] >= 0:
                W = shrink[b, t].copy()
                through = transition @ W
                adjoint = W.T @ (information[rows[b, t]] + back @ (adjoint @ through))
            else:
                through = transition
                adjoint = back @ (adjoint @ transition)
            adjoint = (adjoint + adjoint.T) / 2
            if t + 1 < lengths[b]:
                moved = through @ P
                shrink[b, t] = moved - gained @ moved
            else:
                shrink[b, t] = 0
            gained = P @ adjoint
            cov = P - gained @ P
            priors[b, t] = (cov + cov.T) / 2
