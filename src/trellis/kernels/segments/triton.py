"""Sums of rows with the same index, in a fixed order: the program of the first of these rows adds all of them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE = 1024  # from this many columns on, rows are sorted, and a program adds this many columns
SCANNED, ADDED, WIDTH = 2048, 256, 32  # indices compared; rows and columns added at a time


@triton.jit
def add_kernel(
    values, index, out, N, D, WIDTH: tl.constexpr, SCANNED: tl.constexpr, ADDED: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0)
    own = tl.load(index + n)
    found = tl.zeros((SCANNED,), tl.int32)  # 1: a later row has the same index; 2: an earlier one
    for first in range(0, N, SCANNED):
        m = first + tl.arange(0, SCANNED)
        same = tl.load(index + m, mask=m < N, other=-1) == own
        found = tl.maximum(found, tl.where(same & (m != n), tl.where(m < n, 2, 1), 0))
    others = tl.max(found, 0)
    if others < 2:
        columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        total = tl.load(values + n.to(tl.int64) * D + columns, mask=columns < D, other=0.0).to(tl.float32)
        if others == 1:
            later = tl.zeros((ADDED, WIDTH), tl.float32)
            for first in range(n + 1, N, ADDED):
                m = first + tl.arange(0, ADDED)
                same = tl.load(index + m, mask=m < N, other=-1) == own
                inside = same[:, None] & (columns < D)[None, :]
                rows = tl.load(values + m[:, None].to(tl.int64) * D + columns[None, :], mask=inside, other=0.0)
                later += rows.to(tl.float32)
            total += tl.sum(later, 0)
        tl.store(out + own * D + columns, total, mask=columns < D)


@triton.jit
def add_sorted_kernel(values, index, order, out, N, D, WIDTH: tl.constexpr):
    """Like `add_kernel`, for indices in ascending order: index[n] belongs to row order[n]."""
    n = tl.program_id(0)
    own = tl.load(index + n)
    if own != tl.load(index + n - 1, mask=n > 0, other=-1):
        columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        total = tl.zeros((WIDTH,), tl.float32)
        same = n >= 0
        while same:
            row = tl.load(order + n) * D
            total += tl.load(values + row + columns, mask=columns < D, other=0.0).to(tl.float32)
            n += 1
            same = tl.load(index + n, mask=n < N, other=-1) == own
        tl.store(out + own * D + columns, total, mask=columns < D)


def add_rows(values: Tensor, index: Tensor, count: int) -> Tensor:
    """out[i] = sum of the rows of `values` with index i: [N, D], [N] int64, not negative -> [count, D] float32."""
    (rows, width), out = values.shape, torch.zeros(count, values.shape[1], device=values.device)
    values, index = values.contiguous(), index.contiguous()
    if rows and width >= WIDE:
        keys, order = index.sort(stable=True)
        add_sorted_kernel[(rows, triton.cdiv(width, WIDE))](values, keys, order, out, rows, width, WIDTH=WIDE)
    elif rows and width:
        grid = rows, triton.cdiv(width, WIDTH)
        add_kernel[grid](values, index, out, rows, width, WIDTH=WIDTH, SCANNED=SCANNED, ADDED=ADDED, num_warps=8)
    return out
