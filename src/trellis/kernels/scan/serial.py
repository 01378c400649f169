"""Passes over time for few sequences, or for time-varying transitions: one sequence at a time (numba).

`matrices` [M, K, K] holds all transition matrices; matrices[numbers[b, t]] is that of sequence b after step t. The code
has loops instead of slices and copies, and functions that are inlined before they are compiled, because numba takes two
seconds to compile one assignment to a slice, and a third of a second for a function that is not inlined.
"""

from typing import Any

import numpy as np
from numba import njit

from trellis.kernels.scan.lanes import MATHS

INNER: Any = {"fastmath": MATHS, "inline": "always"}

TINY, TINY_SINGLE = float(np.finfo(np.float64).tiny), float(np.finfo(np.float32).tiny)
NARROW = 16  # up to this many states, Viterbi keeps one best score in a register; beyond, it vectorises over states


@njit(nogil=True, cache=True, fastmath=MATHS)
def forward(worker, workers, prior, matrices, numbers, table, rows, lengths, alphas, norms, last):
    """The forward pass: write p(x_t | x_<t) to norms [B, T], p(z_t | x_<=t) to alphas [B, T or 1, K], and the last
    state distribution to last [B, K]."""
    for b in range(worker, rows.shape[0], workers):
        forward_one(
            prior[b], matrices, numbers[b], table, rows[b], lengths[b], alphas[b], norms[b], last[b]
        )  # fmt: skip


@njit(**INNER)
def forward_one(prior, matrices, numbers, table, rows, length, alphas, norms, a):
    states, kept = prior.shape[0], alphas.shape[0]
    zero, one, tiny = prior.dtype.type(0), prior.dtype.type(1), TINY_SINGLE if prior.itemsize == 4 else TINY
    fixed = matrices.shape[0] == 1
    transposed = np.empty((states if fixed else 0, states), prior.dtype)
    for j in range(len(transposed)):
        for i in range(states):
            transposed[j, i] = matrices[0, i, j]
    for t in range(length):
        p = alphas[t % kept]
        if t == 0:
            for j in range(states):
                p[j] = prior[j]
        elif fixed:
            product(transposed, a, p)
        else:
            spread(a, matrices[numbers[t - 1]], p)
        if rows[t] >= 0:
            weights = table[rows[t]]
            for j in range(states):
                p[j] *= weights[j]
        norm = zero
        for j in range(states):
            norm += p[j]
        norm = norm if norm >= tiny else zero
        norms[t] = norm
        scale = one / norm if norm > 0 else zero
        for j in range(states):
            p[j] *= scale
            a[j] = p[j]


@njit(**INNER)
def product(matrix, x, out):
    """out = matrix x, with each sum in a register: [K, K], [K] -> [K]."""
    for j in range(x.shape[0]):
        row, total = matrix[j], x.dtype.type(0)
        for i in range(x.shape[0]):
            total += row[i] * x[i]
        out[j] = total


@njit(**INNER)
def spread(x, matrix, out):
    """out = x matrix, row by row: [K], [K, K] -> [K]."""
    for j in range(x.shape[0]):
        out[j] = 0
    for i in range(x.shape[0]):
        mass, row = x[i], matrix[i]
        for j in range(x.shape[0]):
            out[j] += mass * row[j]


@njit(nogil=True, cache=True)
def add_scales(worker, workers, scale, rows, lengths, logs):
    """logs[b, t] += the scale of the observed row: [N], [B, T]."""
    for b in range(worker, rows.shape[0], workers):
        for t in range(lengths[b]):
            if rows[b, t] >= 0:
                logs[b, t] += scale[rows[b, t]]


@njit(nogil=True, cache=True, fastmath=MATHS)
def adjoint(
    worker, workers, matrices, numbers, table, rows, lengths, norms, alphas, weights,
    smoothing, d_prior, d_matrices, d_table,
):  # fmt: skip
    """The backward pass of engines/reference.py, as in lanes.py, but d_matrices are [workers or 1, M, K, K]."""
    d_moves = d_matrices[worker if d_matrices.shape[0] > 1 else 0]
    for b in range(worker, rows.shape[0], workers):
        adjoint_one(
            matrices, numbers[b], table, rows[b], lengths[b], norms[b], alphas[b], weights[b],
            smoothing, d_prior[b], d_moves, d_table[worker],
        )  # fmt: skip


@njit(**INNER)
def adjoint_one(matrices, numbers, table, rows, length, norms, alphas, weights, smoothing, w, d_matrices, d_table):
    """`w` is the gradient of the last distribution on entry, and that of the prior on exit."""
    states = matrices.shape[1]
    zero, one = table.dtype.type(0), table.dtype.type(1)
    m = np.empty(states, w.dtype)
    for z in range(states):
        m[z] = w[z]
    for t in range(length - 1, -1, -1):
        a = alphas[t]
        base = weights[t]
        for z in range(states):
            base -= m[z] * a[z]
        gain = one / norms[t] if norms[t] > 0 else zero
        row = rows[t]
        for z in range(states):
            future = m[z] + base
            o = table[row, z] if row >= 0 else one
            w[z] = o * future * gain
            m[z] = a[z] * future
        if smoothing:
            for z in range(states):
                a[z] = m[z]
        elif row >= 0:
            d_row = d_table[row]
            for z in range(states):
                d_row[z] += m[z]
        if t > 0:
            number = numbers[t - 1]
            product(matrices[number], w, m)
            if not smoothing:
                add_outer(alphas[t - 1], w, d_matrices[number])


@njit(**INNER)
def add_outer(left, right, out):
    """out += left right': [K], [K] -> [K, K]."""
    for i in range(left.shape[0]):
        mass, row = left[i], out[i]
        for j in range(right.shape[0]):
            row[j] += mass * right[j]


@njit(nogil=True, cache=True, fastmath=MATHS)
def viterbi(worker, workers, log_prior, log_matrices, numbers, log_table, rows, lengths, path, scores):
    """The Viterbi algorithm: writes path [B, T] and scores [B], float64."""
    for b in range(worker, rows.shape[0], workers):
        scores[b] = viterbi_one(log_prior[b], log_matrices, numbers[b], log_table, rows[b], lengths[b], path[b])


@njit(**INNER)
def viterbi_one(log_prior, log_matrices, numbers, log_table, rows, length, path):
    states = log_prior.shape[0]
    pointers = np.empty((length, states), np.int32)
    narrow = log_matrices.shape[0] == 1 and states <= NARROW
    transposed = np.empty((states if narrow else 0, states), log_prior.dtype)
    for j in range(len(transposed)):
        for i in range(states):
            transposed[j, i] = log_matrices[0, i, j]
    scores = np.empty((2, states), log_prior.dtype)
    s, best = scores[0], scores[1]
    for j in range(states):
        s[j], best[j] = 0, log_prior[j]
    total = 0.0
    for t in range(length):
        if t > 0 and narrow:
            best_before(transposed, s, best, pointers[t])
        elif t > 0:
            best_after(s, log_matrices[numbers[t - 1]], best, pointers[t])
        if rows[t] >= 0:
            for j in range(states):
                best[j] += log_table[rows[t], j]
        top = best[0]
        for j in range(1, states):
            top = best[j] if best[j] > top else top
        top = top if top > -np.inf else best.dtype.type(0)
        total += top
        for j in range(states):
            s[j] = best[j] - top
    z = 0
    for j in range(1, states):
        z = j if s[j] > s[z] else z
    score = total + s[z]
    for t in range(length - 1, -1, -1):
        path[t] = z
        if t > 0:
            z = pointers[t, z]
    return score


@njit(**INNER)
def best_before(transposed, s, best, pointer):
    """best[j] = max_i s[i] + log A[i, j] and the first i that attains it, each in a register."""
    for j in range(s.shape[0]):
        row, choice = transposed[j], 0
        value = s[0] + row[0]
        for i in range(1, s.shape[0]):
            candidate = s[i] + row[i]
            better = candidate > value
            value = candidate if better else value
            choice = i if better else choice
        best[j] = value
        pointer[j] = choice


@njit(**INNER)
def best_after(s, matrix, best, pointer):
    """Like `best_before`, computed row by row of log A."""
    for j in range(s.shape[0]):
        best[j] = s[0] + matrix[0, j]
        pointer[j] = 0
    for i in range(1, s.shape[0]):
        value, row = s[i], matrix[i]
        for j in range(s.shape[0]):
            candidate = value + row[j]
            better = candidate > best[j]
            best[j] = candidate if better else best[j]
            pointer[j] = i if better else pointer[j]


@njit(**INNER)
def invert(weights, uniform):
    """The first index whose cumulative weight exceeds uniform * total weight; never one of weight zero."""
    total = weights.sum()
    target = uniform * total
    cumulative = weights.dtype.type(0)
    chosen = 0
    for z in range(weights.shape[0]):
        if weights[z] > 0:
            chosen = z
            cumulative += weights[z]
            if cumulative > target:
                break
    return chosen


@njit(nogil=True, cache=True)
def sample(worker, workers, matrices, numbers, filtered, lengths, uniform, path):
    """Sample paths from p(z | x), given p(z_t | x_<=t) [B, T, K], and write them to path [B, T]."""
    for b in range(worker, filtered.shape[0], workers):
        after = -1
        for t in range(lengths[b] - 1, -1, -1):
            weights = filtered[b, t].copy()
            if after >= 0:
                weights *= matrices[numbers[b, t], :, after]
            after = invert(weights, uniform[b, t])
            path[b, t] = after
