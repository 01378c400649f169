"""Products of gathered matrices on a GPU, without writing down what is gathered."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, DEPTH = 128, 64


@triton.jit
def product_kernel(
    left, right, out, rows, columns,
    left_set, left_row, left_inner, right_set, right_inner, right_column, A, B, C,
    GATHER_LEFT: tl.constexpr, GATHER_RIGHT: tl.constexpr, SIDE: tl.constexpr, INNER: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    j = tl.program_id(2) * SIDE + tl.arange(0, SIDE)
    inner = tl.arange(0, INNER)
    first = tl.load(rows + m) if GATHER_LEFT else m
    second = tl.load(columns + m) if GATHER_RIGHT else m
    x = left + first * left_set + i[:, None] * left_row
    y = right + second * right_set + j[None, :] * right_column
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for step in range(0, STEPS):
        b = step * INNER + inner
        p = tl.load(x + b[None, :] * left_inner, mask=(i[:, None] < A) & (b[None, :] < B), other=0.0)
        q = tl.load(y + b[:, None] * right_inner, mask=(b[:, None] < B) & (j[None, :] < C), other=0.0)
        total = tl.dot(p.to(q.dtype), q, total, input_precision="ieee")
    place = out + (m * A + i[:, None]) * C + j[None, :]
    tl.store(place, total, mask=(i[:, None] < A) & (j[None, :] < C))


def gathered_product(
    left: Tensor, right: Tensor, rows: Tensor | None, columns: Tensor | None, out: torch.dtype, low: torch.dtype
) -> Tensor:
    """left[rows[m]] right[columns[m]] for every m (None: m itself), multiplied in the precision `low`, which `right`
    has: [G, a, b], [H, b, c], [M], [M] -> [M, a, c]."""
    index = rows if rows is not None else columns
    count = len(left) if index is None else len(index)
    (_, a, b), c = left.shape, right.shape[2]
    side = max(16, min(TILE, triton.next_power_of_2(max(a, c))))
    made = torch.empty(count, a, c, dtype=out, device=left.device)
    if not count:
        return made
    product_kernel[(count, triton.cdiv(a, side), triton.cdiv(c, side))](
        left, right.to(low), made, made if rows is None else rows, made if columns is None else columns,
        *left.stride(), *right.stride(), a, b, c,
        rows is not None, columns is not None, side, DEPTH, triton.cdiv(b, DEPTH), num_warps=4,
    )  # fmt: skip
    return made
