"""Numba: many sequences at once, LANES of them side by side in the vector registers.

A block of sequences keeps its state as [K, LANES], so every inner loop runs over lanes. Arrays over time are
[K, T, LANES]: the expected transitions of a whole block are then one matrix product. Blocks go to the cores in a fixed
order, so results do not depend on timing.
"""

from __future__ import annotations

import numpy as np
from numba import njit

LANES = 64
BLAS_FROM = 32  # from this many states on, a library product beats the hand-written one
MATHS = {"contract", "reassoc", "arcp", "nsz"}  # no assumption about infinities or NaN


@njit(fastmath=MATHS, cache=True)
def product(matrix, x, out):
    """out = matrix x: [K, K], [K, L] -> [K, L]."""
    size = matrix.shape[0]
    if size >= BLAS_FROM:
        np.dot(matrix, x, out)
        return
    for i in range(size):
        target = out[i]
        target[:] = 0
        j = 0
        while j + 4 <= size:
            m0, m1, m2, m3 = matrix[i, j], matrix[i, j + 1], matrix[i, j + 2], matrix[i, j + 3]
            x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
            for lane in range(LANES):
                target[lane] += m0 * x0[lane] + m1 * x1[lane] + m2 * x2[lane] + m3 * x3[lane]
            j += 4
        while j < size:
            m0, x0 = matrix[i, j], x[j]
            for lane in range(LANES):
                target[lane] += m0 * x0[lane]
            j += 1


@njit(fastmath=MATHS, cache=True)
def load_weights(table, rows, lengths, first, live, t, out):
    """out[z, lane] = the potential of this step; one where nothing is observed."""
    states = table.shape[1]
    for lane in range(LANES):
        row = -1
        if lane < live and t < lengths[first + lane]:
            row = rows[first + lane, t]
        if row >= 0:
            for z in range(states):
                out[z, lane] = table[row, z]
        else:
            for z in range(states):
                out[z, lane] = 1


@njit(cache=True)
def extent(block, lengths):
    """A block's first sequence, how many it has, and the longest of them."""
    first = block * LANES
    live = min(LANES, lengths.shape[0] - first)
    return first, live, lengths[first : first + live].max()


@njit(nogil=True, cache=True)
def forward(worker, workers, prior, transposed, table, rows, lengths, alphas, norms, last):
    """Fill c_t into norms [B, T], a_t into alphas [blocks, K, T or 1, LANES], the last belief into last [B, K]."""
    for block in range(worker, alphas.shape[0], workers):
        forward_block(block, prior, transposed, table, rows, lengths, alphas, norms, last)


@njit(fastmath=MATHS, cache=True)
def forward_block(block, prior, transposed, table, rows, lengths, alphas, norms, last):
    states = transposed.shape[0]
    keep = alphas.shape[2] > 1
    first, live, longest = extent(block, lengths)
    a = np.zeros((states, LANES), prior.dtype)
    p = np.zeros((states, LANES), prior.dtype)
    o = np.empty((states, LANES), prior.dtype)
    c = np.empty(LANES, prior.dtype)
    tiny = np.finfo(prior.dtype).tiny
    for lane in range(live):
        p[:, lane] = prior[first + lane]
    for t in range(longest):
        if t > 0:
            product(transposed, a, p)
        load_weights(table, rows, lengths, first, live, t, o)
        c[:] = 0
        for z in range(states):
            pz, oz = p[z], o[z]
            for lane in range(LANES):
                pz[lane] *= oz[lane]
                c[lane] += pz[lane]
        for lane in range(LANES):
            c[lane] = c[lane] if c[lane] >= tiny else 0
        for lane in range(live):
            if t < lengths[first + lane]:
                norms[first + lane, t] = c[lane]
        for lane in range(LANES):
            c[lane] = 1 / c[lane] if c[lane] > 0 else 0
        for z in range(states):
            pz, az, kept = p[z], a[z], alphas[block, z, t if keep else 0]
            for lane in range(LANES):
                az[lane] = pz[lane] * c[lane]
                kept[lane] = az[lane]
        for lane in range(live):
            if t == lengths[first + lane] - 1:
                last[first + lane] = a[:, lane]


@njit(nogil=True, cache=True)
def adjoint(
    worker, workers, matrix, table, rows, lengths, norms, alphas, weights, d_prior, d_matrix, d_table, posterior
):
    """The backward pass of naive.py. d_prior [B, K] comes in as the gradient of the last belief; d_matrix
    [workers, K, K] and d_table [workers, N, K] are summed by the caller; posterior [B, T, K] is filled where it is not
    empty."""
    for block in range(worker, alphas.shape[0], workers):
        adjoint_block(
            block, matrix, table, rows, lengths, norms, alphas, weights,
            d_prior, d_matrix[worker], d_table[worker], posterior,
        )  # fmt: skip


@njit(fastmath=MATHS, cache=True)
def adjoint_block(block, matrix, table, rows, lengths, norms, alphas, weights, d_prior, d_matrix, d_table, posterior):
    states = matrix.shape[0]
    first, live, longest = extent(block, lengths)
    pulls = np.empty((states, longest, LANES), matrix.dtype)
    m = np.zeros((states, LANES), matrix.dtype)
    w = np.empty((states, LANES), matrix.dtype)
    o = np.empty((states, LANES), matrix.dtype)
    base = np.empty(LANES, matrix.dtype)
    gain = np.empty(LANES, matrix.dtype)
    for t in range(longest - 1, -1, -1):
        load_weights(table, rows, lengths, first, live, t, o)
        base[:] = 0
        gain[:] = 0
        for lane in range(live):
            b = first + lane
            if t < lengths[b]:
                base[lane] = weights[b, t]
                gain[lane] = 1 / norms[b, t] if norms[b, t] > 0 else 0
                if t == lengths[b] - 1:
                    m[:, lane] = d_prior[b]
        for z in range(states):
            mz, az = m[z], alphas[block, z, t]
            for lane in range(LANES):
                base[lane] -= mz[lane] * az[lane]
        for z in range(states):
            mz, az, oz, wz, kept = m[z], alphas[block, z, t], o[z], w[z], pulls[z, t]
            for lane in range(LANES):
                future = mz[lane] + base[lane]
                wz[lane] = oz[lane] * future * gain[lane]
                kept[lane] = wz[lane]
                oz[lane] = az[lane] * future
        store_posterior(o, rows, lengths, first, live, t, d_table, posterior)
        if t > 0:
            product(matrix, w, m)
    for lane in range(live):
        if lengths[first + lane] > 0:
            d_prior[first + lane] = w[:, lane]
    if longest > 1:
        before = np.ascontiguousarray(alphas[block, :, : longest - 1]).reshape(states, -1)
        after = np.ascontiguousarray(pulls[:, 1:]).reshape(states, -1)
        d_matrix += np.dot(before, after.T)


@njit(cache=True)
def store_posterior(probs, rows, lengths, first, live, t, d_table, posterior):
    """Add a_t b_t [K, LANES] to the rows of the table that were observed, and write it out where asked for."""
    for lane in range(live):
        b = first + lane
        if t < lengths[b]:
            if rows[b, t] >= 0:
                target = d_table[rows[b, t]]
                for z in range(probs.shape[0]):
                    target[z] += probs[z, lane]
            if posterior.shape[0] > 0:
                posterior[b, t] = probs[:, lane]


@njit(nogil=True, cache=True)
def mode(worker, workers, log_prior, log_matrix, log_table, rows, lengths, path, scores):
    """Viterbi: fill path [B, T] and scores [B], float64."""
    for block in range(worker, (rows.shape[0] + LANES - 1) // LANES, workers):
        mode_block(block, log_prior, log_matrix, log_table, rows, lengths, path, scores)


@njit(fastmath=MATHS, cache=True)
def mode_block(block, log_prior, log_matrix, log_table, rows, lengths, path, scores):
    states = log_matrix.shape[0]
    zero = log_matrix.dtype.type(0)
    first, live, longest = extent(block, lengths)
    pointers = np.empty((longest, states, LANES), np.int32)
    s = np.zeros((states, LANES), log_matrix.dtype)
    best = np.zeros((states, LANES), log_matrix.dtype)
    ends = np.zeros((states, LANES), log_matrix.dtype)
    o = np.zeros((states, LANES), log_matrix.dtype)
    top = np.empty(LANES, log_matrix.dtype)
    total = np.zeros(LANES, np.float64)
    for lane in range(live):
        best[:, lane] = log_prior[first + lane]
    for t in range(longest):
        if t > 0:
            maximise(log_matrix, s, best, pointers[t])
        for lane in range(live):
            row = rows[first + lane, t] if t < lengths[first + lane] else -1
            for z in range(states):
                o[z, lane] = log_table[row, z] if row >= 0 else zero
        top[:] = -np.inf
        for z in range(states):
            bz, oz = best[z], o[z]
            for lane in range(LANES):
                bz[lane] += oz[lane]
                top[lane] = max(top[lane], bz[lane])
        for lane in range(LANES):
            top[lane] = top[lane] if top[lane] > -np.inf else zero
        for z in range(states):
            bz, sz = best[z], s[z]
            for lane in range(LANES):
                sz[lane] = bz[lane] - top[lane]
        for lane in range(live):
            if t < lengths[first + lane]:
                total[lane] += top[lane]
            if t == lengths[first + lane] - 1:
                ends[:, lane] = s[:, lane]
    for lane in range(live):
        b = first + lane
        z = int(np.argmax(ends[:, lane]))
        scores[b] = total[lane] + ends[z, lane]
        for t in range(lengths[b] - 1, -1, -1):
            path[b, t] = z
            if t > 0:
                z = pointers[t, z, lane]


@njit(fastmath=MATHS, cache=True)
def maximise(log_matrix, s, best, pointer):
    """best[j] = max_i s[i] + log A[i, j] and the first i that reaches it, lane by lane."""
    states = log_matrix.shape[0]
    for j in range(states):
        bj, pj = best[j], pointer[j]
        value, s0 = log_matrix[0, j], s[0]
        for lane in range(LANES):
            bj[lane] = s0[lane] + value
            pj[lane] = 0
        for i in range(1, states):
            value, si = log_matrix[i, j], s[i]
            for lane in range(LANES):
                candidate = si[lane] + value
                better = candidate > bj[lane]
                bj[lane] = candidate if better else bj[lane]
                pj[lane] = i if better else pj[lane]
