"""`join` and `spread` of the inside pass (numba): threads share the spans of one width, which are independent."""

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
def spread(worker, workers, left, right, scales, outer, left_adjoint, right_adjoint, length, width):
    batch, count, first = left.shape[1], length - width + 1, begin(length, width)
    for place in range(count * batch * worker // workers, count * batch * (worker + 1) // workers):
        i, b = divmod(place, batch)
        row = first + i
        here = scales[row, b]
        if here == -np.inf:
            continue
        as_left, as_right = left_adjoint[row, b], right_adjoint[row, b]
        for wider in range(width + 1, length - i + 1):  # the left part of the span [i, i + wider)
            above, other = begin(length, wider) + i, begin(length, wider - width) + i + width
            factor = math.exp(here + scales[other, b] - scales[above, b]) if scales[above, b] > -np.inf else 0.0
            if factor > 0:
                add_product(as_left, left.dtype.type(factor), outer[above, b], right[other, b])
        for start in range(i):  # the right part of the span [start, i + width)
            above, other = begin(length, i + width - start) + start, begin(length, i - start) + start
            factor = math.exp(here + scales[other, b] - scales[above, b]) if scales[above, b] > -np.inf else 0.0
            if factor > 0:
                add_product(as_right, left.dtype.type(factor), outer[above, b], left[other, b])
