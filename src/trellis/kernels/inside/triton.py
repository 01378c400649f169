"""`join` and `spread` of the inside pass on a GPU, one launch per width. A program computes a span of a sentence."""

import triton
import triton.language as tl
from torch import Tensor

MOST = 8192  # maximum rank of a grammar: a program of `join` computes all ranks of a span
RANKS = 256  # maximum ranks that a program of `spread` computes
VARYING = "length", "width", "batch"  # sizes for which a kernel is not compiled again


@triton.jit
def row_of(start, width, sentence, length, batch):
    """The row of a span in a chart [S * B, R]."""
    row = (width - 1) * (2 * length - width + 2) // 2 + start
    return row.to(tl.int64) * batch + sentence


@triton.jit
def weight(scales, one, other, whole):
    """exp(scales[one] + scales[other] - whole), zero if the whole span is impossible."""
    possible = whole > -float("inf")
    both = tl.load(scales + one) + tl.load(scales + other)
    return tl.where(possible, tl.exp(both - tl.where(possible, whole, 0.0)), 0.0)


@triton.jit(do_not_specialize=VARYING)
def join_kernel(left, right, scales, inside, length, width, batch, rank, SPLITS: tl.constexpr, RANKS: tl.constexpr):
    start, sentence = tl.program_id(0) // batch, tl.program_id(0) % batch
    splits, r = 1 + tl.arange(0, SPLITS), tl.arange(0, RANKS)
    known = splits < width
    one = row_of(start, splits, sentence, length, batch)
    other = row_of(start + splits, width - splits, sentence, length, batch)
    first = tl.load(scales + one, mask=known, other=-float("inf"))
    top = tl.max(first + tl.load(scales + other, mask=known, other=-float("inf")), 0)
    total = tl.zeros((RANKS,), left.dtype.element_ty)
    for split in range(1, width):
        a = row_of(start, split, sentence, length, batch)
        b = row_of(start + split, width - split, sentence, length, batch)
        product = tl.load(left + a * rank + r, mask=r < rank, other=0.0)
        product *= tl.load(right + b * rank + r, mask=r < rank, other=0.0)
        total += weight(scales, a, b, top) * product
    peak = tl.max(total, 0)
    shown = tl.where(peak > 0.0, peak, 1.0)
    row = row_of(start, width, sentence, length, batch)
    tl.store(inside + row * rank + r, total / shown, mask=r < rank)
    tl.store(scales + row, tl.where(peak > 0.0, top + tl.log(shown), -float("inf")))


@triton.jit(do_not_specialize=VARYING)
def spread_kernel(
    left, right, scales, outer, left_adjoint, right_adjoint, length, width, batch, rank, RANKS: tl.constexpr
):
    start, sentence = tl.program_id(0) // batch, tl.program_id(0) % batch
    r = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    row = row_of(start, width, sentence, length, batch)
    as_left = tl.load(left_adjoint + row * rank + r, mask=r < rank, other=0.0)
    as_right = tl.load(right_adjoint + row * rank + r, mask=r < rank, other=0.0)
    for wider in range(width + 1, length - start + 1):  # the left part of the span [start, start + wider)
        above = row_of(start, wider, sentence, length, batch)
        other = row_of(start + width, wider - width, sentence, length, batch)
        product = tl.load(outer + above * rank + r, mask=r < rank, other=0.0)
        product *= tl.load(right + other * rank + r, mask=r < rank, other=0.0)
        as_left += weight(scales, row, other, tl.load(scales + above)) * product
    for before in range(1, start + 1):  # the right part of the span [start - before, start + width)
        above = row_of(start - before, width + before, sentence, length, batch)
        other = row_of(start - before, before, sentence, length, batch)
        product = tl.load(outer + above * rank + r, mask=r < rank, other=0.0)
        product *= tl.load(left + other * rank + r, mask=r < rank, other=0.0)
        as_right += weight(scales, row, other, tl.load(scales + above)) * product
    tl.store(left_adjoint + row * rank + r, as_left, mask=r < rank)
    tl.store(right_adjoint + row * rank + r, as_right, mask=r < rank)


def join(left: Tensor, right: Tensor, scales: Tensor, inside: Tensor, length: int, width: int) -> None:
    batch, rank = left.shape[1:]
    size = triton.next_power_of_2(rank)
    warps = max(1, min(16, size // 256))
    grid = ((length - width + 1) * batch,)
    splits = triton.next_power_of_2(length)  # the same for all widths: compiled once
    join_kernel[grid](left, right, scales, inside, length, width, batch, rank, splits, size, num_warps=warps)


def spread(
    left: Tensor, right: Tensor, scales: Tensor, outer: Tensor, left_adjoint: Tensor, right_adjoint: Tensor,
    length: int, width: int,
) -> None:  # fmt: skip
    batch, rank = left.shape[1:]
    size = min(RANKS, triton.next_power_of_2(rank))
    grid = (length - width + 1) * batch, triton.cdiv(rank, size)
    charts = left, right, scales, outer, left_adjoint, right_adjoint
    spread_kernel[grid](*charts, length, width, batch, rank, size, num_warps=max(1, size // 64))
