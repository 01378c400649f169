"""Forward and backward passes, if the live states of each step are one class of consecutive states (numba).

The block between two classes is read from the transition matrix itself [K, K], and expected transitions are added to an
array of the same shape, so no block is copied. `begins` [C + 1] holds the first state of each class, and `classes`
[B, T] holds the class of each step. States of probability zero are skipped.
"""

import numpy as np
from numba import njit

from trellis.kernels.scan.serial import INNER


@njit(nogil=True, cache=True)
def forward(worker, workers, prior, matrix, begins, classes, table, rows, lengths, alphas, norms, last):
    """The forward pass: write p(x_t | x_<t) to norms [B, T], p(z_t | x_<=t) to alphas [B, T or 1, k], and the last
    state distribution to last [B, k]."""
    for b in range(worker, rows.shape[0], workers):
        forward_one(
            prior[b], matrix, begins, classes[b], table, rows[b], lengths[b], alphas[b], norms[b], last[b]
        )  # fmt: skip


@njit(**INNER)
def forward_one(prior, matrix, begins, classes, table, rows, length, alphas, norms, a):
    kept = alphas.shape[0]
    zero, one, tiny = prior.dtype.type(0), prior.dtype.type(1), np.finfo(prior.dtype).tiny
    p = np.empty(prior.shape[0], prior.dtype)
    for j in range(prior.shape[0]):
        p[j] = prior[j]
    for t in range(length):
        here = begins[classes[t]]
        size = begins[classes[t] + 1] - here
        if t > 0:
            before = begins[classes[t - 1]]
            for j in range(size):
                p[j] = zero
            for i in range(begins[classes[t - 1] + 1] - before):
                mass = a[i]
                if mass > 0:
                    row = matrix[before + i]
                    for j in range(size):
                        p[j] += mass * row[here + j]
        weights, norm = table[rows[t]], zero
        for j in range(size):
            p[j] *= weights[j]
            norm += p[j]
        norm = norm if norm >= tiny else zero
        norms[t] = norm
        scale = one / norm if norm > 0 else zero
        target = alphas[t % kept]
        for j in range(prior.shape[0]):
            a[j] = p[j] * scale if j < size else zero
            target[j] = a[j]


@njit(nogil=True, cache=True)
def adjoint(
    worker, workers, matrix, begins, classes, table, rows, lengths, norms, alphas, weights, w, d_matrix, d_table
):
    """The backward pass of engines/reference.py: adds dL/dA to d_matrix [workers, K, K] and dL/dlog table to d_table
    [workers, N, k]. On entry w [B, k] is the gradient of the last distribution, on exit that of the prior."""
    for b in range(worker, rows.shape[0], workers):
        adjoint_one(
            matrix, begins, classes[b], table, rows[b], lengths[b], norms[b], alphas[b], weights[b], w[b],
            d_matrix[worker], d_table[worker],
        )  # fmt: skip


@njit(**INNER)
def adjoint_one(matrix, begins, classes, table, rows, length, norms, alphas, weights, w, d_matrix, d_table):
    zero, one = table.dtype.type(0), table.dtype.type(1)
    m = w.copy()
    for t in range(length - 1, -1, -1):
        here = begins[classes[t]]
        size = begins[classes[t] + 1] - here
        a, potential, d_row = alphas[t], table[rows[t]], d_table[rows[t]]
        base = weights[t]
        for z in range(size):
            base -= m[z] * a[z]
        gain = one / norms[t] if norms[t] > 0 else zero
        for z in range(size):
            future = m[z] + base
            w[z] = potential[z] * future * gain
            d_row[z] += a[z] * future
        for z in range(size, w.shape[0]):
            w[z] = zero
        if t > 0:
            before = begins[classes[t - 1]]
            for i in range(begins[classes[t - 1] + 1] - before):
                mass, total = alphas[t - 1, i], zero
                row, d_moves = matrix[before + i], d_matrix[before + i]
                if mass > 0:
                    for j in range(size):
                        total += row[here + j] * w[j]
                        d_moves[here + j] += mass * w[j]
                m[i] = total
