"""Forward and adjoint passes for many sequences of many states (numba).

The messages of a block of sequences are [size, K]: every step is one BLAS matrix product, and every inner loop runs
over the states, which are contiguous in potentials and posteriors too.
"""

import numpy as np
from numba import njit

from trellis.kernels.scan.lanes import MATHS, extent


@njit(nogil=True, cache=True)
def forward(worker, workers, prior, matrix, table, rows, lengths, alphas, norms, last):
    """The forward pass: write p(x_t | x_<t) to norms [B, T], p(z_t | x_<=t) to alphas [blocks, T or 1, size, K], and
    the last state distribution to last [B, K]."""
    kept, size = alphas.shape[1], alphas.shape[2]
    for block in range(worker, alphas.shape[0], workers):
        first, live, longest = extent(block, size, lengths)
        p = prior[first : first + live].copy()
        for t in range(longest):
            if t > 0:
                np.dot(alphas[block, (t - 1) % kept, :live], matrix, p)
            a = alphas[block, t % kept]
            for lane in range(live):
                b = first + lane
                if t < lengths[b]:
                    norms[b, t] = condition(p, table, rows[b, t], a, lane)
                    if t == lengths[b] - 1:
                        last[b] = a[lane]
                else:
                    a[lane] = 0


@njit(fastmath=MATHS, cache=True)
def condition(p, table, row, a, lane):
    """Compute a[lane] = p[lane] o / c, where o is the given row of the table, and c = <p[lane], o>; returns c."""
    states, zero, one = p.shape[1], p.dtype.type(0), p.dtype.type(1)
    norm = zero
    for z in range(states):
        a[lane, z] = p[lane, z] * table[row, z] if row >= 0 else p[lane, z]
        norm += a[lane, z]
    norm = norm if norm >= np.finfo(p.dtype).tiny else zero
    scale = one / norm if norm > 0 else zero
    for z in range(states):
        a[lane, z] *= scale
    return norm


@njit(nogil=True, cache=True)
def adjoint(
    worker, workers, matrix, table, rows, lengths, norms, alphas, weights, smoothing, d_prior, d_matrices, d_table
):
    """The backward pass of engines/reference.py, as in lanes.py."""
    states, d_matrix, d_rows = matrix.shape[0], d_matrices[worker, 0], d_table[worker]
    pairs = np.empty(d_matrix.shape, table.dtype)
    for block in range(worker, alphas.shape[0], workers):
        first, live, longest = extent(block, alphas.shape[2], lengths)
        m = np.zeros((live, states), table.dtype)
        w = np.zeros((live, states), table.dtype)
        for t in range(longest - 1, -1, -1):
            a = alphas[block, t]
            for lane in range(live):
                b = first + lane
                if t < lengths[b]:
                    if t == lengths[b] - 1:
                        m[lane] = d_prior[b]
                    pull(m, a, table, rows[b, t], norms[b, t], weights[b, t], w, lane)
                    if smoothing:
                        a[lane] = m[lane]
                    elif rows[b, t] >= 0:
                        d_rows[rows[b, t]] += m[lane]
            if t > 0:
                np.dot(w, matrix.T, m)
                if not smoothing:
                    np.dot(alphas[block, t - 1, :live].T, w, pairs)
                    d_matrix += pairs
        for lane in range(live):
            if lengths[first + lane] > 0:
                d_prior[first + lane] = w[lane]


@njit(fastmath=MATHS, cache=True)
def pull(m, a, table, row, norm, weight, w, lane):
    """Set w = o b / c and m = a b, where b = m + weight - <m, a> and o is the given row of the table."""
    states, zero, one = m.shape[1], m.dtype.type(0), m.dtype.type(1)
    base = weight
    for z in range(states):
        base -= m[lane, z] * a[lane, z]
    gain = one / norm if norm > 0 else zero
    for z in range(states):
        future = m[lane, z] + base
        w[lane, z] = future * gain * (table[row, z] if row >= 0 else one)
        m[lane, z] = a[lane, z] * future
