"""Triton: one program joins all edges of a pair."""

import triton
import triton.language as tl
from torch import Tensor

SIZE = 4096  # states that a program joins at a time
TABLES = ["scales", "may_end", "begins", "target", "label", "levels"]


@triton.jit(do_not_specialize_on_alignment=TABLES)
def joined_kernel(
    values, scales, may_end, begins, target, label, weights, ending, found, levels, K, RELAXED: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """The messages of the edges of one pair, divided by the exp of the largest scale, and then by their maximum."""
    pair = tl.program_id(0).to(tl.int64)
    kind = found.dtype.element_ty
    first, last, ends = tl.load(begins + pair), tl.load(begins + pair + 1), tl.load(may_end + pair) != 0
    least = tl.full([], float("-inf"), tl.float64)
    top = tl.where(ends, 0.0, least)
    for edge in range(first, last):
        top = tl.maximum(top, tl.load(scales + tl.load(target + edge)))
    top, peak = tl.where(top == least, 0.0, top), tl.full([], 0.0, kind)
    share = tl.exp(tl.where(ends, -top, least)).to(kind)
    for begin in range(0, K, SIZE):
        state = begin + tl.arange(0, SIZE)
        total = share * tl.load(ending + state, mask=state < K, other=0.0)
        for edge in range(first, last):
            row = tl.load(target + edge)
            factor = tl.exp(tl.load(scales + row) - top).to(kind)
            weight = tl.load(weights + tl.load(label + edge) * K + state, mask=state < K, other=0.0)
            term = tl.load(values + row * K + state, mask=state < K, other=0.0) * weight * factor
            total = tl.maximum(total, term) if RELAXED else total + term
        tl.store(found + pair * K + state, total, mask=state < K)
        peak = tl.maximum(peak, tl.max(total))
    divisor = tl.where(peak == 0.0, 1.0, peak)
    tl.store(levels + pair, tl.where(peak == 0.0, least, top + tl.log(divisor.to(tl.float64))))
    tl.debug_barrier()
    for begin in range(0, K, SIZE):
        state = begin + tl.arange(0, SIZE)
        total = tl.load(found + pair * K + state, mask=state < K, other=0.0)
        tl.store(found + pair * K + state, total / divisor, mask=state < K)


def joined(
    values: Tensor, scales: Tensor, edges: tuple[Tensor, ...], weights: Tensor, ending: Tensor, relaxed: bool
) -> tuple[Tensor, Tensor]:
    """Like `constrained.joined`: [n, K], [n]. `ending` [K] is p(<eos> | z)."""
    ends, begins, _, target, label = edges
    found, levels = values.new_empty(len(ends), values.shape[1]), scales.new_empty(len(ends))
    given = values, scales, ends, begins, target, label, weights.contiguous(), ending
    joined_kernel[(len(ends),)](*given, found, levels, values.shape[1], RELAXED=relaxed, SIZE=SIZE, num_warps=16)
    return found, levels
