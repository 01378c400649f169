"""The functions of `trellis.kernels.bags` in numba. Each thread has a contiguous range of tokens and its own sums."""

from numba import njit


@njit(nogil=True, cache=True)
def score(worker, workers, ids, offsets, first, labels, weights, place, table, scores):
    """Add the weights of every token's attributes to scores [N, L]."""
    tokens = scores.shape[0]
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        row = scores[t]
        for i in range(offsets[t], offsets[t + 1]):
            attribute = ids[i]
            if place[attribute] >= 0:
                whole = table[place[attribute]]
                for label in range(row.shape[0]):
                    row[label] += whole[label]
            else:
                for p in range(first[attribute], first[attribute + 1]):
                    row[labels[p]] += weights[p]


@njit(nogil=True, cache=True)
def collect(worker, workers, ids, offsets, first, labels, place, slopes, sums, rows):
    """Add the gradient of the scores of every token, `slopes` [N, L], to the entries of its attributes. They are in
    rows [workers, R, L] if an attribute has a row, otherwise in sums [workers, P]."""
    tokens, own, own_rows = slopes.shape[0], sums[worker], rows[worker]
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        row = slopes[t]
        for i in range(offsets[t], offsets[t + 1]):
            attribute = ids[i]
            if place[attribute] >= 0:
                whole = own_rows[place[attribute]]
                for label in range(row.shape[0]):
                    whole[label] += row[label]
            else:
                for p in range(first[attribute], first[attribute + 1]):
                    own[p] += row[labels[p]]
