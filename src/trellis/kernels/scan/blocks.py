"""Numba: many sequences of many states.

A block of sequences keeps its state as [size, K]: every step is one matrix product by the library, and every inner loop
runs over the states, which lie side by side in potentials and posteriors too.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trellis.kernels.scan.lanes import MATHS, extent


@njit(nogil=True, cache=True)
def forward(worker, workers, prior, matrix, table, rows, lengths, alphas, norms, last):
    """Fill c_t into norms [B, T], a_t into alphas [blocks, T or 1, size, K], the last belief into last [B, K]."""
    for block in range(worker, alphas.shape[0], workers):
        forward_block(block, prior, matrix, table, rows, lengths, alphas, norms, last)


@njit(cache=True)
def forward_block(block, prior, matrix, table, rows, lengths, alphas, norms, last):
    kept, size = alphas.shape[1], alphas.shape[2]
    first, live, longest = extent(block, size, lengths)
    p = prior[first : first + live].copy()
    for t in range(longest):
        if t > 0:
            np.dot(alphas[block, (t - 1) % kept, :live], matrix, p)
        a = alphas[block, t % kept]
        for lane in range(live):
            b = first + lane
            if t < lengths[b]:
                norms[b, t] = condition(p[lane], table, rows[b, t], a[lane])
                if t == lengths[b] - 1:
                    last[b] = a[lane]
            else:
                a[lane] = 0


@njit(fastmath=MATHS, cache=True)
def condition(p, table, row, a):
    """a = p o / c, where o is that row of the table; returns c."""
    zero, one = p.dtype.type(0), p.dtype.type(1)
    norm = zero
    if row >= 0:
        o = table[row]
        for z in range(p.shape[0]):
            a[z] = p[z] * o[z]
            norm += a[z]
    else:
        for z in range(p.shape[0]):
            a[z] = p[z]
            norm += a[z]
    norm = norm if norm >= np.finfo(p.dtype).tiny else zero
    scale = one / norm if norm > 0 else zero
    for z in range(p.shape[0]):
        a[z] *= scale
    return norm


@njit(nogil=True, cache=True)
def adjoint(
    worker, workers, matrix, table, rows, lengths, norms, alphas, weights, d_prior, d_matrices, d_table, posterior
):
    """The backward pass of naive.py. d_prior [B, K] comes in as the gradient of the last belief; d_matrices
    [workers, 1, K, K] and d_table [workers, N, K] are summed by the caller; posterior [B, T, K]. Of these three,
    whichever is empty is left out."""
    for block in range(worker, alphas.shape[0], workers):
        adjoint_block(
            block, matrix, table, rows, lengths, norms, alphas, weights,
            d_prior, d_matrices[worker, 0], d_table[worker], posterior,
        )  # fmt: skip


@njit(cache=True)
def adjoint_block(block, matrix, table, rows, lengths, norms, alphas, weights, d_prior, d_matrix, d_table, posterior):
    states = matrix.shape[0]
    first, live, longest = extent(block, alphas.shape[2], lengths)
    m = np.zeros((live, states), table.dtype)
    w = np.zeros((live, states), table.dtype)
    q = np.empty(states, table.dtype)
    pairs = np.empty(d_matrix.shape, table.dtype)
    for t in range(longest - 1, -1, -1):
        for lane in range(live):
            b = first + lane
            if t < lengths[b]:
                message = d_prior[b] if t == lengths[b] - 1 else m[lane]
                pull(message, alphas[block, t, lane], table, rows[b, t], norms[b, t], weights[b, t], w[lane], q)
                if d_table.size > 0 and rows[b, t] >= 0:
                    d_table[rows[b, t]] += q
                if posterior.size > 0:
                    posterior[b, t] = q
        if t > 0:
            np.dot(w, matrix.T, m)
            if d_matrix.size > 0:
                np.dot(alphas[block, t - 1, :live].T, w, pairs)
                d_matrix += pairs
    for lane in range(live):
        if lengths[first + lane] > 0:
            d_prior[first + lane] = w[lane]


@njit(fastmath=MATHS, cache=True)
def pull(m, a, table, row, norm, weight, w, q):
    """w = o b / c and q = a b, where b = m + weight - <m, a> and o is that row of the table."""
    base = weight
    for z in range(m.shape[0]):
        base -= m[z] * a[z]
    gain = table.dtype.type(1) / norm if norm > 0 else table.dtype.type(0)
    for z in range(m.shape[0]):
        future = m[z] + base
        q[z] = a[z] * future
        w[z] = future * gain
    if row >= 0:
        o = table[row]
        for z in range(m.shape[0]):
            w[z] *= o[z]
