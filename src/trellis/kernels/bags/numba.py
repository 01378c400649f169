"""Numba: each thread takes a contiguous range of tokens; the sums of slopes are private to a thread."""

from numba import njit


@njit(nogil=True, cache=True)
def score(worker, workers, ids, offsets, first, labels, weights, scores):
    """Add the weights of every token's attributes to scores [N, L]."""
    tokens = scores.shape[0]
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        row = scores[t]
        for i in range(offsets[t], offsets[t + 1]):
            for p in range(first[ids[i]], first[ids[i] + 1]):
                row[labels[p]] += weights[p]


@njit(nogil=True, cache=True)
def collect(worker, workers, ids, offsets, first, labels, slopes, sums):
    """Add slopes [N, L] to the sums [workers, P] of the pairs that they flow to."""
    tokens, own = slopes.shape[0], sums[worker]
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        row = slopes[t]
        for i in range(offsets[t], offsets[t + 1]):
            for p in range(first[ids[i]], first[ids[i] + 1]):
                own[p] += row[labels[p]]
