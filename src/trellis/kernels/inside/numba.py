"""`join` and `split` of the inside pass (numba). Spans of one width are independent, and so are their parts: for a
given width, no two of them share a left or a right part, so that threads add to adjoints without locks."""

import math

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def begin(length, width):
    return (width - 1) * (2 * length - width + 2) // 2


@njit(nogil=True, cache=True, fastmath={"nsz", "arcp", "contract", "afn", "reassoc"})
def add_product(target, factor, one, other):
    for r in range(len(target)):
        target[r] += factor * one[r] * other[r]


@njit(nogil=True, cache=True)
def join(worker, workers, left, right, scales, inside, length, width):
    batch, count, first = left.shape[1], length - width + 1, begin(length, width)
    for place in range(count * batch * worker // workers, count * batch * (worker + 1) // workers):
        i, b = divmod(place, batch)
        total = inside[first + i, b]
        total[:] = 0
        top = -np.inf
        for k in range(1, width):
            top = max(top, scales[begin(length, k) + i, b] + scales[begin(length, width - k) + i + k, b])
        scales[first + i, b] = top
        if top == -np.inf:
            continue
        for k in range(1, width):
            one, other = begin(length, k) + i, begin(length, width - k) + i + k
            factor = math.exp(scales[one, b] + scales[other, b] - top)
            if factor > 0:
                add_product(total, left.dtype.type(factor), left[one, b], right[other, b])
        peak = total.max()
        scales[first + i, b] += math.log(peak) if peak > 0 else -np.inf
        if peak > 0:
            total /= peak


@njit(nogil=True, cache=True)
def split(worker, workers, left, right, scales, outer, left_adjoint, right_adjoint, length, width):
    batch, count, first = left.shape[1], length - width + 1, begin(length, width)
    for place in range(count * batch * worker // workers, count * batch * (worker + 1) // workers):
        i, b = divmod(place, batch)
        above, scale = outer[first + i, b], scales[first + i, b]
        if scale == -np.inf or not above.any():
            continue
        for k in range(1, width):
            one, other = begin(length, k) + i, begin(length, width - k) + i + k
            factor = math.exp(scales[one, b] + scales[other, b] - scale)
            if factor > 0:
                add_product(left_adjoint[one, b], left.dtype.type(factor), above, right[other, b])
                add_product(right_adjoint[other, b], left.dtype.type(factor), above, left[one, b])
