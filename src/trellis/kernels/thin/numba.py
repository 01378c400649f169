"""Numba: a few rows of the matrix at a time. The matrix is read from memory once.

In `times` and its special cases, if the number of rows is not a multiple of four or six, the last rows are computed
twice. Rows are visited upwards or downwards: if the next product visits them in the other direction, it finds the last
rows of this one in the cache."""

from numba import njit

from trellis.kernels.thin import DEPTH, WIDTH


@njit(nogil=True, cache=True, fastmath=True)
def times(worker, workers, matrix, few, found, downwards):
    """found[n, r] = sum_k matrix[r, k] few[n, k], for at least six rows and a multiple of four vectors."""
    rows, zero = matrix.shape[0], matrix.dtype.type(0)
    tiles = (rows + 5) // 6
    begin, end = tiles * worker // workers, tiles * (worker + 1) // workers
    for tile in range(begin, end):
        r = min(6 * (begin + end - 1 - tile if downwards else tile), rows - 6)
        for n in range(0, few.shape[0], 4):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = zero
            e0 = e1 = e2 = e3 = f0 = f1 = f2 = f3 = zero
            for k in range(matrix.shape[1]):
                u, v, w = matrix[r, k], matrix[r + 1, k], matrix[r + 2, k]
                x, y, z = matrix[r + 3, k], matrix[r + 4, k], matrix[r + 5, k]
                m = few[n, k]
                a0, b0, c0, d0, e0, f0 = a0 + m * u, b0 + m * v, c0 + m * w, d0 + m * x, e0 + m * y, f0 + m * z
                m = few[n + 1, k]
                a1, b1, c1, d1, e1, f1 = a1 + m * u, b1 + m * v, c1 + m * w, d1 + m * x, e1 + m * y, f1 + m * z
                m = few[n + 2, k]
                a2, b2, c2, d2, e2, f2 = a2 + m * u, b2 + m * v, c2 + m * w, d2 + m * x, e2 + m * y, f2 + m * z
                m = few[n + 3, k]
                a3, b3, c3, d3, e3, f3 = a3 + m * u, b3 + m * v, c3 + m * w, d3 + m * x, e3 + m * y, f3 + m * z
            found[n, r], found[n, r + 1], found[n, r + 2] = a0, b0, c0
            found[n, r + 3], found[n, r + 4], found[n, r + 5] = d0, e0, f0
            found[n + 1, r], found[n + 1, r + 1], found[n + 1, r + 2] = a1, b1, c1
            found[n + 1, r + 3], found[n + 1, r + 4], found[n + 1, r + 5] = d1, e1, f1
            found[n + 2, r], found[n + 2, r + 1], found[n + 2, r + 2] = a2, b2, c2
            found[n + 2, r + 3], found[n + 2, r + 4], found[n + 2, r + 5] = d2, e2, f2
            found[n + 3, r], found[n + 3, r + 1], found[n + 3, r + 2] = a3, b3, c3
            found[n + 3, r + 3], found[n + 3, r + 4], found[n + 3, r + 5] = d3, e3, f3


@njit(nogil=True, cache=True, fastmath=True)
def times_one(worker, workers, matrix, one, found, downwards):
    """found[0, r] = sum_k matrix[r, k] one[0, k], for at least four rows of the matrix."""
    rows, zero = matrix.shape[0], matrix.dtype.type(0)
    tiles = (rows + 3) // 4
    begin, end = tiles * worker // workers, tiles * (worker + 1) // workers
    for tile in range(begin, end):
        r = min(4 * (begin + end - 1 - tile if downwards else tile), rows - 4)
        a = b = c = d = zero
        for k in range(matrix.shape[1]):
            m = one[0, k]
            a, b = a + m * matrix[r, k], b + m * matrix[r + 1, k]
            c, d = c + m * matrix[r + 2, k], d + m * matrix[r + 3, k]
        found[0, r], found[0, r + 1], found[0, r + 2], found[0, r + 3] = a, b, c, d


@njit(nogil=True, cache=True, fastmath=True)
def times_two(worker, workers, matrix, few, found, downwards):
    """found[n, r] = sum_k matrix[r, k] few[n, k] of two vectors, for at least six rows."""
    rows, zero = matrix.shape[0], matrix.dtype.type(0)
    tiles = (rows + 5) // 6
    begin, end = tiles * worker // workers, tiles * (worker + 1) // workers
    for tile in range(begin, end):
        r = min(6 * (begin + end - 1 - tile if downwards else tile), rows - 6)
        a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = e0 = e1 = f0 = f1 = zero
        for k in range(matrix.shape[1]):
            u, v, w = matrix[r, k], matrix[r + 1, k], matrix[r + 2, k]
            x, y, z = matrix[r + 3, k], matrix[r + 4, k], matrix[r + 5, k]
            m = few[0, k]
            a0, b0, c0, d0, e0, f0 = a0 + m * u, b0 + m * v, c0 + m * w, d0 + m * x, e0 + m * y, f0 + m * z
            m = few[1, k]
            a1, b1, c1, d1, e1, f1 = a1 + m * u, b1 + m * v, c1 + m * w, d1 + m * x, e1 + m * y, f1 + m * z
        found[0, r], found[0, r + 1], found[0, r + 2] = a0, b0, c0
        found[0, r + 3], found[0, r + 4], found[0, r + 5] = d0, e0, f0
        found[1, r], found[1, r + 1], found[1, r + 2] = a1, b1, c1
        found[1, r + 3], found[1, r + 4], found[1, r + 5] = d1, e1, f1


@njit(nogil=True, cache=True, fastmath=True)
def times_three(worker, workers, matrix, few, found, downwards):
    """found[n, r] = sum_k matrix[r, k] few[n, k] of three vectors, for at least four rows."""
    rows, zero = matrix.shape[0], matrix.dtype.type(0)
    tiles = (rows + 3) // 4
    begin, end = tiles * worker // workers, tiles * (worker + 1) // workers
    for tile in range(begin, end):
        r = min(4 * (begin + end - 1 - tile if downwards else tile), rows - 4)
        a0 = a1 = a2 = b0 = b1 = b2 = c0 = c1 = c2 = d0 = d1 = d2 = zero
        for k in range(matrix.shape[1]):
            u, v, w, x = matrix[r, k], matrix[r + 1, k], matrix[r + 2, k], matrix[r + 3, k]
            m = few[0, k]
            a0, b0, c0, d0 = a0 + m * u, b0 + m * v, c0 + m * w, d0 + m * x
            m = few[1, k]
            a1, b1, c1, d1 = a1 + m * u, b1 + m * v, c1 + m * w, d1 + m * x
            m = few[2, k]
            a2, b2, c2, d2 = a2 + m * u, b2 + m * v, c2 + m * w, d2 + m * x
        found[0, r], found[0, r + 1], found[0, r + 2], found[0, r + 3] = a0, b0, c0, d0
        found[1, r], found[1, r + 1], found[1, r + 2], found[1, r + 3] = a1, b1, c1, d1
        found[2, r], found[2, r + 1], found[2, r + 2], found[2, r + 3] = a2, b2, c2, d2


@njit(nogil=True, cache=True, fastmath=True)
def few_times(worker, workers, matrix, few, found):
    """Add sum_r few[n, r] matrix[r, k] to found[n, k]. The last eight rows may overlap with those before them; `few`
    has zeros where it meets a row for the second time."""
    rows, columns = matrix.shape
    width = WIDTH // matrix.itemsize
    panels = (columns + width - 1) // width
    for panel in range(panels * worker // workers, panels * (worker + 1) // workers):
        begin = panel * width
        size = min(width, columns - begin)
        for first in range(0, rows, DEPTH):
            r = min(first, rows - DEPTH)
            a, b, c, d = matrix[r, begin:], matrix[r + 1, begin:], matrix[r + 2, begin:], matrix[r + 3, begin:]
            e, f, g, h = matrix[r + 4, begin:], matrix[r + 5, begin:], matrix[r + 6, begin:], matrix[r + 7, begin:]
            for n in range(few.shape[0]):
                s, t, u, v = few[n, first], few[n, first + 1], few[n, first + 2], few[n, first + 3]
                w, x, y, z = few[n, first + 4], few[n, first + 5], few[n, first + 6], few[n, first + 7]
                total = found[n, begin : begin + size]
                for k in range(size):
                    left = s * a[k] + t * b[k] + u * c[k] + v * d[k]
                    total[k] += left + w * e[k] + x * f[k] + y * g[k] + z * h[k]
