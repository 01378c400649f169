"""MAP estimates of categorical distributions from expected counts [..., n], which are not negative, on a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # entries at a time


@triton.jit
def weigh(counts, old, pseudocount, at, inside, KEEP: tl.constexpr):
    """Counts plus the pseudocount, and the old probabilities. If KEEP, counts are zero where the old probability is
    zero."""
    weights = tl.maximum(tl.load(counts + at, mask=inside, other=0.0) + pseudocount, 0.0)
    before = tl.load(old + at, mask=inside, other=0.0)
    if KEEP:
        weights = tl.where(before == 0, 0.0, weights)
    return tl.where(inside, weights, 0.0), before


@triton.jit(do_not_specialize=["pseudocount"])
def rows_kernel(counts, old, out, pseudocount, N, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * N
    total = tl.zeros((), tl.float32)
    for first in range(0, N, BLOCK):
        n = first + tl.arange(0, BLOCK)
        weights, _ = weigh(counts, old, pseudocount, begin + n, n < N, KEEP)
        total += tl.sum(weights, 0)
    for first in range(0, N, BLOCK):
        n = first + tl.arange(0, BLOCK)
        weights, before = weigh(counts, old, pseudocount, begin + n, n < N, KEEP)
        tl.store(out + begin + n, tl.where(total > 0, weights / tl.where(total > 0, total, 1.0), before), mask=n < N)


@triton.jit(do_not_specialize=["pseudocount"])
def log_columns_kernel(counts, totals, old, out, pseudocount, N, BLOCK: tl.constexpr):
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * N + n, n < N
    total = tl.load(totals + n, mask=inside, other=0.0)
    weights, before = weigh(counts, old, pseudocount, at, inside, False)
    logs = tl.where(weights > 0, tl.log(tl.where(weights > 0, weights, 1.0)), -float("inf"))
    logs -= tl.log(tl.where(total > 0, total, 1.0))
    tl.store(out + at, tl.where(total > 0, logs, before), mask=inside)


def rows(counts: Tensor, pseudocount: float, old: Tensor, keep_zeros: bool) -> Tensor:
    """Distributions along the last axis. A distribution without counts is unchanged."""
    out = torch.empty_like(old)
    count = counts.numel() // counts.shape[-1]
    rows_kernel[(count,)](counts, old, out, float(pseudocount), counts.shape[-1], keep_zeros, BLOCK=BLOCK)
    return out


def log_columns(counts: Tensor, pseudocount: float, old: Tensor) -> Tensor:
    """Logarithms of distributions along the first axis [V, K]. A distribution without counts is unchanged."""
    out, (symbols, states) = torch.empty_like(old), counts.shape
    totals = counts.sum(0) + symbols * pseudocount
    grid = symbols, triton.cdiv(states, BLOCK)
    log_columns_kernel[grid](counts, totals, old, out, float(pseudocount), states, BLOCK=BLOCK)
    return out
