"""Read the rows of a table at ascending indices, in float32 and in a lower precision, in one pass over memory. The
gradient takes one pass, too."""

import torch
import triton
import triton.language as tl
from torch import Tensor

ENTRIES = 2048  # entries per program


@triton.jit
def pick_kernel(values, index, out, low, N, D, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < N)[:, None] & (columns < D)[None, :]
    source = tl.load(index + rows, mask=rows < N, other=0)
    x = tl.load(values + source[:, None] * D + columns[None, :], mask=inside, other=0.0)
    place = rows[:, None].to(tl.int64) * D + columns[None, :]
    tl.store(out + place, x, mask=inside)
    tl.store(low + place, x, mask=inside)


@triton.jit
def spread_kernel(
    grads, low_grads, index, out, N, K, D, STEPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the sum of both gradients to each of the K rows that was read, and zero to every other row."""
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    begin, end = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32) + N
    for _ in range(0, STEPS):  # the first index that is not smaller
        middle = (begin + end) // 2
        smaller = (begin < end) & (tl.load(index + middle, mask=begin < end, other=0) < rows)
        begin, end = tl.where(smaller, middle + 1, begin), tl.where(smaller, end, middle)
    found = (begin < N) & (tl.load(index + begin, mask=begin < N, other=-1) == rows)
    place = begin[:, None].to(tl.int64) * D + columns[None, :]
    some = found[:, None] & (columns < D)[None, :]
    total = tl.load(grads + place, mask=some, other=0.0) + tl.load(low_grads + place, mask=some, other=0.0)
    inside = (rows < K)[:, None] & (columns < D)[None, :]
    tl.store(out + rows[:, None].to(tl.int64) * D + columns[None, :], total, mask=inside)


def tile(dim: int) -> dict[str, int]:
    width = triton.next_power_of_2(dim)
    return {"ROWS": max(1, ENTRIES // width), "WIDTH": width, "num_warps": 4}


def pick(values: Tensor, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """values[index], and a copy of it in another precision: [K, d], [n] -> [n, d], [n, d]."""
    sizes, (rows, dim) = tile(values.shape[1]), (len(index), values.shape[1])
    out, low = (torch.empty(rows, dim, dtype=kind, device=values.device) for kind in (values.dtype, dtype))
    pick_kernel[(triton.cdiv(rows, sizes["ROWS"]),)](values, index, out, low, rows, dim, **sizes)
    return out, low


def spread(grads: Tensor, low_grads: Tensor, index: Tensor, count: int) -> Tensor:
    """The gradient of the table, given the gradients of both results of `pick`: [n, d], [n, d], [n] -> [count, d]."""
    (rows, dim), sizes = grads.shape, tile(grads.shape[1])
    out = torch.empty(count, dim, dtype=grads.dtype, device=grads.device)
    given = grads.contiguous(), low_grads.contiguous(), index, out, rows, count, dim
    spread_kernel[(triton.cdiv(count, sizes["ROWS"]),)](*given, STEPS=rows.bit_length() + 1, **sizes)
    return out
