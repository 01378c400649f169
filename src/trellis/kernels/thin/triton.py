"""Triton: one program multiplies a few rows with all vectors, so that the matrix is read from memory once."""

import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = {1: 16, 2: 16, 4: 16, 8: 8}, 256  # of the matrix in a program at a time, by the number of vectors
TILE, STAGES = {"ROWS": 32, "COLUMNS": 128}, {"num_warps": 4, "num_stages": 4}  # of products on tensor cores


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
    """matrix [R, K] times each of a few vectors [n, K]: [n, R]."""
    if len(vectors) > max(ROWS):
        return dot(matrix, vectors, down=False)
    found = matrix.new_empty(len(vectors), len(matrix))
    padded = triton.next_power_of_2(len(vectors))
    grid, choices = (triton.cdiv(len(matrix), ROWS[padded]),), {"VECTORS": padded, "ROWS": ROWS[padded]}
    times_kernel[grid](matrix, vectors.contiguous(), found, *matrix.shape, len(vectors), **choices, COLUMNS=COLUMNS)
    return found


@triton.jit(do_not_specialize=["NUMBER"])
def dot_kernel(
    matrix, vectors, found, R, K, NUMBER, DOWN: tl.constexpr, VECTORS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A product with the rows of the matrix, or with its columns (DOWN), on tensor cores. Each number is the sum of two
    in TF32, so the errors are close to those of float32."""
    vector, row = tl.arange(0, VECTORS), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, VECTORS], tl.float32)
    for begin in range(0, K, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        if DOWN:
            place = column.to(tl.int64)[None, :] * R + row[:, None]
        else:
            place = row.to(tl.int64)[:, None] * K + column[None, :]
        left = tl.load(matrix + place, mask=(row < R)[:, None] & (column < K)[None, :], other=0.0)
        inside = (column < K)[:, None] & (vector < NUMBER)[None, :]
        right = tl.load(vectors + vector[None, :] * K + column[:, None], mask=inside, other=0.0)
        total = tl.dot(left, right, total, input_precision="tf32x3")
    place = vector[None, :].to(tl.int64) * R + row[:, None]
    tl.store(found + place, total, mask=(row < R)[:, None] & (vector < NUMBER)[None, :])


def dot(matrix: Tensor, vectors: Tensor, down: bool) -> Tensor:
    """Each of a few vectors times the rows of a matrix [R, K], or times the columns of a matrix [K, R]: [n, R]."""
    size, length = matrix.shape[::-1] if down else matrix.shape
    found, padded = matrix.new_empty(len(vectors), size), max(16, triton.next_power_of_2(len(vectors)))
    dot_kernel[(triton.cdiv(size, TILE["ROWS"]),)](
        matrix, vectors.contiguous(), found, size, length, len(vectors), DOWN=down, VECTORS=padded, **TILE, **STAGES
    )
    return found


def few_times(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Each of a few vectors [n, R] times matrix [R, K]: [n, K]."""
    return dot(matrix, vectors, down=True)
