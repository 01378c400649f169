"""Numba: four rows of the matrix and four vectors at a time, so that the matrix is read from memory once."""

from numba import njit


@njit(nogil=True, cache=True, fastmath=True)
def times(worker, workers, matrix, few, found):
    """found[n, r] = sum_k matrix[r, k] few[n, k]; both numbers of rows are multiples of four."""
    tiles, zero = matrix.shape[0] // 4, matrix.dtype.type(0)
    for tile in range(tiles * worker // workers, tiles * (worker + 1) // workers):
        r = 4 * tile
        for n in range(0, few.shape[0], 4):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = zero
            for k in range(matrix.shape[1]):
                w, x, y, z = matrix[r, k], matrix[r + 1, k], matrix[r + 2, k], matrix[r + 3, k]
                v = few[n, k]
                a0, b0, c0, d0 = a0 + v * w, b0 + v * x, c0 + v * y, d0 + v * z
                v = few[n + 1, k]
                a1, b1, c1, d1 = a1 + v * w, b1 + v * x, c1 + v * y, d1 + v * z
                v = few[n + 2, k]
                a2, b2, c2, d2 = a2 + v * w, b2 + v * x, c2 + v * y, d2 + v * z
                v = few[n + 3, k]
                a3, b3, c3, d3 = a3 + v * w, b3 + v * x, c3 + v * y, d3 + v * z
            found[n, r], found[n, r + 1], found[n, r + 2], found[n, r + 3] = a0, b0, c0, d0
            found[n + 1, r], found[n + 1, r + 1], found[n + 1, r + 2], found[n + 1, r + 3] = a1, b1, c1, d1
            found[n + 2, r], found[n + 2, r + 1], found[n + 2, r + 2], found[n + 2, r + 3] = a2, b2, c2, d2
            found[n + 3, r], found[n + 3, r + 1], found[n + 3, r + 2], found[n + 3, r + 3] = a3, b3, c3, d3
