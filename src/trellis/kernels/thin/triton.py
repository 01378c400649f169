"""Triton: one program multiplies a few rows with all vectors, so that the matrix is read from memory once."""

import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = {1: 16, 2: 16, 4: 16, 8: 8}, 256  # of the matrix in a program at a time, by the number of vectors


@triton.jit(do_not_specialize=["NUMBER"])
def times_kernel(
    matrix, vectors, found, R, K, NUMBER, VECTORS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    vector, row = tl.arange(0, VECTORS), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([VECTORS, ROWS, COLUMNS], matrix.dtype.element_ty)
    few, some = vector[:, None, None], row[None, :, None].to(tl.int64)
    for begin in range(0, K, COLUMNS):
        column = (begin + tl.arange(0, COLUMNS))[None, None, :]
        left = tl.load(matrix + some * K + column, mask=(some < R) & (column < K), other=0.0)
        right = tl.load(vectors + few * K + column, mask=(few < NUMBER) & (column < K), other=0.0)
        total += left * right
    place = vector[:, None] * R + row[None, :]
    tl.store(found + place, tl.sum(total, 2), mask=(vector[:, None] < NUMBER) & (row[None, :] < R))


def times(matrix: Tensor, vectors: Tensor) -> Tensor:
    """matrix [R, K] times each of at most eight vectors [n, K]: [n, R]."""
    found = matrix.new_empty(len(vectors), len(matrix))
    padded = triton.next_power_of_2(len(vectors))
    grid, choices = (triton.cdiv(len(matrix), ROWS[padded]),), {"VECTORS": padded, "ROWS": ROWS[padded]}
    times_kernel[grid](matrix, vectors.contiguous(), found, *matrix.shape, len(vectors), **choices, COLUMNS=COLUMNS)
    return found
