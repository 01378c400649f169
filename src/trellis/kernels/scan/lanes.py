"""Forward, adjoint and Viterbi passes for many sequences of few states, LANES of them in parallel (numba).

The messages of a block of sequences are [K, LANES]: every inner loop runs over lanes, and every step is one small
matrix product. Blocks are assigned to cores in a fixed order, so results do not depend on timing.
"""

import numpy as np
from numba import njit

LANES = 64
TILE = 16
MATHS = {"contract", "reassoc", "arcp", "nsz"}  # no assumption about infinities or NaN


@njit(cache=True)
def extent(block, size, lengths):
    """The first sequence of a block, the number of its sequences, and the length of the longest."""
    first = block * size
    live = min(size, lengths.shape[0] - first)
    return first, live, lengths[first : first + live].max()


@njit(fastmath=MATHS, cache=True)
def load_weights(table, rows, lengths, first, live, t, missing, out):
    """Write the table's entry for step t to out[z, lane]: `missing` for a missing observation, zero in the padding."""
    states = table.shape[1]
    for lane in range(live):
        row = rows[first + lane, t]
        if t < lengths[first + lane] and row >= 0:
            for z in range(states):
                out[z, lane] = table[row, z]
        else:
            fill = missing if t < lengths[first + lane] else 0
            for z in range(states):
                out[z, lane] = fill


@njit(nogil=True, cache=True)
def forward(worker, workers, prior, matrix, table, rows, lengths, alphas, norms, last):
    """The forward pass: write p(x_t | x_<t) to norms [B, T], p(z_t | x_<=t) to alphas [blocks, T or 1, K, LANES], and
    the last state distribution to last [B, K]."""
    for block in range(worker, alphas.shape[0], workers):
        forward_block(block, prior, matrix, table, rows, lengths, alphas, norms, last)


@njit(fastmath=MATHS, cache=True)
def forward_block(block, prior, matrix, table, rows, lengths, alphas, norms, last):
    kept, states = alphas.shape[1], alphas.shape[2]
    first, live, longest = extent(block, LANES, lengths)
    p = np.zeros((states, LANES), prior.dtype)
    o = np.zeros((states, LANES), prior.dtype)
    c = np.empty(LANES, prior.dtype)
    one, tiny = prior.dtype.type(1), np.finfo(prior.dtype).tiny
    for lane in range(live):
        p[:, lane] = prior[first + lane]
    for t in range(longest):
        if t > 0:
            np.dot(matrix.T, alphas[block, (t - 1) % kept], p)
        load_weights(table, rows, lengths, first, live, t, one, o)
        c[:] = 0
        for z in range(states):
            pz, oz = p[z], o[z]
            for lane in range(LANES):
                pz[lane] *= oz[lane]
                c[lane] += pz[lane]
        for lane in range(live):
            if t < lengths[first + lane]:
                norms[first + lane, t] = c[lane] if c[lane] >= tiny else 0
        for lane in range(LANES):
            c[lane] = one / c[lane] if c[lane] >= tiny else 0
        a = alphas[block, t % kept]
        for z in range(states):
            pz, az = p[z], a[z]
            for lane in range(LANES):
                az[lane] = pz[lane] * c[lane]
        for lane in range(live):
            if t == lengths[first + lane] - 1:
                last[first + lane] = a[:, lane]


@njit(nogil=True, cache=True)
def adjoint(
    worker, workers, matrix, table, rows, lengths, norms, alphas, weights, smoothing, d_prior, d_matrices, d_table
):
    """The backward pass of engines/reference.py. On entry, d_prior [B, K] is the gradient of the last distribution. For
    smoothing, alphas become p(z_t | x); otherwise d_matrices [workers, 1, K, K] and d_table [workers, N, K] are
    accumulated, for the caller to sum."""
    for block in range(worker, alphas.shape[0], workers):
        adjoint_block(
            block, matrix, table, rows, lengths, norms, alphas, weights,
            smoothing, d_prior, d_matrices[worker, 0], d_table[worker],
        )  # fmt: skip


@njit(fastmath=MATHS, cache=True)
def adjoint_block(block, matrix, table, rows, lengths, norms, alphas, weights, smoothing, d_prior, d_matrix, d_table):
    states = matrix.shape[0]
    first, live, longest = extent(block, LANES, lengths)
    m = np.zeros((states, LANES), matrix.dtype)
    w = np.zeros((states, LANES), matrix.dtype)
    o = np.zeros((states, LANES), matrix.dtype)
    pairs = np.empty(d_matrix.shape, matrix.dtype)
    base = np.zeros(LANES, matrix.dtype)
    gain = np.zeros(LANES, matrix.dtype)
    one = matrix.dtype.type(1)
    for t in range(longest - 1, -1, -1):
        load_weights(table, rows, lengths, first, live, t, one, o)
        a = alphas[block, t]
        for lane in range(live):
            b = first + lane
            if t < lengths[b]:
                base[lane] = weights[b, t]
                gain[lane] = one / norms[b, t] if norms[b, t] > 0 else 0
                if t == lengths[b] - 1:
                    m[:, lane] = d_prior[b]
            else:
                base[lane] = 0
        for z in range(states):
            mz, az = m[z], a[z]
            for lane in range(LANES):
                base[lane] -= mz[lane] * az[lane]
        for z in range(states):
            mz, az, oz, wz = m[z], a[z], o[z], w[z]
            for lane in range(LANES):
                future = mz[lane] + base[lane]
                wz[lane] = oz[lane] * future * gain[lane]
                oz[lane] = az[lane] * future
        if smoothing:
            a[:] = o
        else:
            add_by_row(o, rows, lengths, first, live, t, d_table)
        if t > 0:
            np.dot(matrix, w, m)
            if not smoothing:
                np.dot(alphas[block, t - 1], w.T, pairs)
                d_matrix += pairs
    for lane in range(live):
        if lengths[first + lane] > 0:
            d_prior[first + lane] = w[:, lane]


@njit(cache=True)
def add_by_row(probs, rows, lengths, first, live, t, d_table):
    """Add the gradients `probs` [K, LANES] of step t to the rows of d_table that are observed at this step."""
    for lane in range(live):
        b = first + lane
        if t < lengths[b] and rows[b, t] >= 0:
            target = d_table[rows[b, t]]
            for z in range(probs.shape[0]):
                target[z] += probs[z, lane]


@njit(nogil=True, cache=True)
def unpack(worker, workers, packed, out):
    """Copy [blocks, T, size, K] to [B, T, K], TILE steps at a time, so that both arrays stay in the cache."""
    size = packed.shape[2]
    for block in range(worker, packed.shape[0], workers):
        for begin in range(0, out.shape[1], TILE):
            for b in range(block * size, min((block + 1) * size, out.shape[0])):
                for t in range(begin, min(begin + TILE, out.shape[1])):
                    for z in range(out.shape[2]):
                        out[b, t, z] = packed[block, t, b - block * size, z]


@njit(nogil=True, cache=True)
def viterbi(worker, workers, log_prior, log_matrix, log_table, rows, lengths, path, scores):
    """The Viterbi algorithm: writes path [B, T] and scores [B], float64."""
    for block in range(worker, (rows.shape[0] + LANES - 1) // LANES, workers):
        mode_block(block, log_prior, log_matrix, log_table, rows, lengths, path, scores)


@njit(fastmath=MATHS, cache=True)
def mode_block(block, log_prior, log_matrix, log_table, rows, lengths, path, scores):
    states = log_matrix.shape[0]
    transposed = log_matrix.T.copy()
    zero = transposed.dtype.type(0)
    first, live, longest = extent(block, LANES, lengths)
    reached = np.empty((longest, states, LANES), transposed.dtype)
    best = np.zeros((states, LANES), transposed.dtype)
    o = np.zeros((states, LANES), transposed.dtype)
    top = np.empty(LANES, transposed.dtype)
    total = np.zeros(LANES, np.float64)
    for lane in range(live):
        best[:, lane] = log_prior[first + lane]
    for t in range(longest):
        if t > 0:
            maximise(transposed, reached[t - 1], best)
        load_weights(log_table, rows, lengths, first, live, t, zero, o)
        top[:] = -np.inf
        for z in range(states):
            bz, oz = best[z], o[z]
            for lane in range(LANES):
                bz[lane] += oz[lane]
                top[lane] = max(top[lane], bz[lane])
        for lane in range(LANES):
            top[lane] = top[lane] if top[lane] > -np.inf else zero
        for z in range(states):
            bz, sz = best[z], reached[t, z]
            for lane in range(LANES):
                sz[lane] = bz[lane] - top[lane]
        for lane in range(live):
            if t < lengths[first + lane]:
                total[lane] += top[lane]
    trace(transposed, reached, lengths, first, live, total, path, scores)


@njit(fastmath=MATHS, cache=True)
def maximise(transposed, s, best):
    """best[j] = max_i log A[i, j] + s[i], lane by lane."""
    states = transposed.shape[0]
    for j in range(states):
        bj, row = best[j], transposed[j]
        bj[:] = -np.inf
        i = 0
        while i + 4 <= states:
            m0, m1, m2, m3 = row[i], row[i + 1], row[i + 2], row[i + 3]
            s0, s1, s2, s3 = s[i], s[i + 1], s[i + 2], s[i + 3]
            for lane in range(LANES):
                low, high = max(m0 + s0[lane], m1 + s1[lane]), max(m2 + s2[lane], m3 + s3[lane])
                bj[lane] = max(bj[lane], max(low, high))
            i += 4
        while i < states:
            m0, s0 = row[i], s[i]
            for lane in range(LANES):
                bj[lane] = max(bj[lane], m0 + s0[lane])
            i += 1


@njit(cache=True)
def trace(transposed, reached, lengths, first, live, total, path, scores):
    """Backtrack from the best last state of each sequence; of several best predecessors, take the first."""
    states = transposed.shape[0]
    zero = transposed.dtype.type(0)
    z = np.zeros(LANES, np.int64)
    for t in range(reached.shape[0] - 1, -1, -1):
        for lane in range(live):
            b = first + lane
            if t < lengths[b]:
                best, choice = -np.inf, 0
                row, free = transposed[z[lane]], t == lengths[b] - 1
                for i in range(states):
                    score = reached[t, i, lane] + (zero if free else row[i])
                    if score > best:
                        best, choice = score, i
                z[lane] = choice
                path[b, t] = choice
                if free:
                    scores[b] = total[lane] + best
