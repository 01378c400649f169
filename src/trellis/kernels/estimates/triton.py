"""MAP estimates of categorical distributions from expected counts [..., n], which are not negative, on a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # entries at a time
SUMMED = 64  # rows that a program adds


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


@triton.jit
def sums_kernel(counts, out, V, N, SUMMED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of the columns of a table [V, N] over some rows."""
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, SUMMED, ROWS):
        v = tl.program_id(0) * SUMMED + first + tl.arange(0, ROWS)
        inside = (v < V)[:, None] & (n < N)[None, :]
        total += tl.load(counts + v[:, None].to(tl.int64) * N + n[None, :], mask=inside, other=0.0)
    tl.store(out + tl.program_id(0) * N + n, tl.sum(total, 0), mask=n < N)


@triton.jit(do_not_specialize=["pseudocount"])
def log_columns_kernel(
    counts, totals, old, out, pseudocount, V, N, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    v = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, inside = v[:, None].to(tl.int64) * N + n[None, :], (v < V)[:, None] & (n < N)[None, :]
    total = tl.load(totals + n, mask=n < N, other=0.0)[None, :] + V * pseudocount
    weights, before = weigh(counts, old, pseudocount, at, inside, False)
    logs = tl.where(weights > 0, tl.log(tl.where(weights > 0, weights, 1.0)), -float("inf"))
    logs -= tl.log(tl.where(total > 0, total, 1.0))
    tl.store(out + at, tl.where(total > 0, logs, before), mask=inside)


def rows(counts: Tensor, pseudocount: float, old: Tensor, keep_zeros: bool, out: Tensor | None = None) -> Tensor:
    """The MAP estimates along the last dimension. A distribution without counts keeps its old probabilities. `out` may
    be the counts themselves."""
    out = torch.empty_like(old) if out is None else out
    count = counts.numel() // counts.shape[-1]
    rows_kernel[(count,)](counts, old, out, float(pseudocount), counts.shape[-1], keep_zeros, BLOCK=BLOCK)
    return out


def log_columns(counts: Tensor, pseudocount: float, old: Tensor, out: Tensor | None = None) -> Tensor:
    """The logarithms of the MAP estimates along the first dimension of counts [V, K]. A distribution without counts
    keeps its old logarithms. `out` may be the counts themselves."""
    out, (symbols, states) = torch.empty_like(old) if out is None else out, counts.shape
    block = min(BLOCK, triton.next_power_of_2(states))
    rows = min(SUMMED, BLOCK // block)  # a program of `sums_kernel` must not add rows of the next
    sizes, columns = {"ROWS": rows, "BLOCK": block}, triton.cdiv(states, block)
    totals = counts.new_empty(triton.cdiv(symbols, SUMMED), states)
    sums_kernel[(len(totals), columns)](counts, totals, symbols, states, SUMMED=SUMMED, **sizes)
    given = counts, totals.sum(0), old, out, float(pseudocount), symbols, states
    log_columns_kernel[(triton.cdiv(symbols, rows), columns)](*given, **sizes)
    return out
