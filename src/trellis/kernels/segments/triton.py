"""out[i] = sum of the rows with index i, in a fixed order: the program of the first such row adds all of them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 1 << 13  # rows: every program reads all indices
SCANNED, ADDED, WIDTH = 1024, 128, 32  # indices compared; rows and columns added at a time


@triton.jit
def add_kernel(
    values, index, out, N, D, WIDTH: tl.constexpr, SCANNED: tl.constexpr, ADDED: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0)
    own = tl.load(index + n)
    before, after = 0, 0
    for first in range(0, N, SCANNED):
        m = first + tl.arange(0, SCANNED)
        same = (tl.load(index + m, mask=m < N, other=-1) == own).to(tl.int32)
        before += tl.sum(tl.where(m < n, same, 0), 0)
        after += tl.sum(tl.where(m > n, same, 0), 0)
    if before == 0:
        columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        total = tl.load(values + n.to(tl.int64) * D + columns, mask=columns < D, other=0.0).to(tl.float32)
        if after > 0:
            others = tl.zeros((ADDED, WIDTH), tl.float32)
            for first in range(n + 1, N, ADDED):
                m = first + tl.arange(0, ADDED)
                same = tl.load(index + m, mask=m < N, other=-1) == own
                inside = same[:, None] & (columns < D)[None, :]
                rows = tl.load(values + m[:, None].to(tl.int64) * D + columns[None, :], mask=inside, other=0.0)
                others += rows.to(tl.float32)
            total += tl.sum(others, 0)
        tl.store(out + own * D + columns, total, mask=columns < D)


def add_rows(values: Tensor, index: Tensor, count: int) -> Tensor:
    """[N, D], [N] int64, none of them negative -> [count, D] float32."""
    (rows, width), out = values.shape, torch.zeros(count, values.shape[1], device=values.device)
    if rows and width:
        grid = rows, triton.cdiv(width, WIDTH)
        given = values.contiguous(), index.contiguous(), out, rows, width
        add_kernel[grid](*given, WIDTH=WIDTH, SCANNED=SCANNED, ADDED=ADDED, num_warps=4)
    return out
