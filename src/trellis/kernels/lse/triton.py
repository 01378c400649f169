"""Row normalisers n_i = log sum_j exp(q_i . k_j) on a GPU, tile by tile as in flash attention. The largest logit of the
first tile is subtracted from all logits of a row. If later logits are far larger, the rows are computed again with a
running maximum.

With p_ij = exp(q_i . k_j - n_i), the forward pass also accumulates the mean key of each row, m_i = sum_j p_ij k_j. If
g_i is the gradient with respect to n_i, the gradient of the queries, dQ = g m, then needs no large product, and the
backward pass only computes dK = p' (g Q). In total, these are four products of R S d multiply-adds each.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.kernels.mask import Mask
from trellis.kernels.mask.triton import kept

LARGEST_DIM = 256
# Rows that a program keeps, rows that it streams, and launch parameters, tuned for a GPU with 228 KiB of shared memory.
FORWARD = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 2}
WITHOUT_MEAN = {"ROWS": 128, "COLUMNS": 64, "num_warps": 8, "num_stages": 3}
BACKWARD = {"ROWS": 64, "COLUMNS": 128, "num_warps": 8, "num_stages": 3}
BUSY = 264  # programs that saturate a GPU; if there are too few rows for them, columns are split
JOINED, SCALED = 256, 16  # rows per program of `join_kernel`, and of `scale_kernel`
LARGEST = 2.0**100  # sum of exponentials from which the pass runs again with a running maximum
LOG2E = tl.constexpr(1.4426950408889634)


def fits(dim: int) -> bool:
    """Whether a tile of accumulators fits in registers."""
    return dim in (16, 32, 64, 128, LARGEST_DIM)


@triton.jit
def some_logits(
    q, keys, own, column_keys, threshold, start, S: tl.constexpr,
    DIM: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The next few keys, and the logits of all queries q with these keys, -inf where masked or beyond the last key."""
    columns, dims = start + tl.arange(0, COLUMNS), tl.arange(0, DIM)
    if S % COLUMNS == 0:
        k = tl.load(keys + columns[:, None] * DIM + dims[None, :])
    else:
        k = tl.load(keys + columns[:, None] * DIM + dims[None, :], mask=columns[:, None] < S, other=0.0)
    x = tl.dot(q, tl.trans(k), input_precision="ieee")
    if S % COLUMNS != 0:
        x = tl.where((columns < S)[None, :], x, -float("inf"))
    if MASKED:
        theirs = tl.load(column_keys + columns, mask=columns < S, other=0)
        x = tl.where(kept(own, theirs, threshold), x, -float("inf"))
    return k, x


@triton.jit
def forward_kernel(
    queries, keys, out, means, row_keys, column_keys, threshold, listed, count, R, S: tl.constexpr,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PART: tl.constexpr, MASKED: tl.constexpr,
    MEAN: tl.constexpr, LARGEST: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Compute the normalisers, over a part of the keys, of all rows or of the first `count` rows in `listed`."""
    part = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    source = rows
    if LISTED:
        if tl.program_id(0) * ROWS >= tl.load(count):
            return
        source = tl.load(listed + rows, mask=rows < tl.load(count), other=0)
    q = tl.load(queries + source[:, None] * DIM + dims[None, :], mask=rows[:, None] < R, other=0.0)
    own = rows
    if MASKED:
        own = tl.load(row_keys + rows, mask=rows < R, other=0)
    begin = part * PART
    end = tl.minimum(begin + PART, S)
    _, x = some_logits(q, keys, own, column_keys, threshold, begin, S, DIM, COLUMNS, MASKED)
    top = tl.max(x, 1) * LOG2E
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS, DIM), tl.float32)
    for start in range(begin, end, COLUMNS):
        k, x = some_logits(q, keys, own, column_keys, threshold, start, S, DIM, COLUMNS, MASKED)
        p = tl.exp2(x * LOG2E - top[:, None])
        total += tl.sum(p, 1)
        if MEAN:
            mean = tl.dot(p.to(k.dtype), k, mean, input_precision="ieee")
    if (
        tl.max((total < LARGEST).to(tl.int32) ^ 1, 0) > 0
    ):  # far larger logits than the first: again, with a running maximum
        top = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mean = tl.zeros((ROWS, DIM), tl.float32)
        for start in range(begin, end, COLUMNS):
            k, x = some_logits(q, keys, own, column_keys, threshold, start, S, DIM, COLUMNS, MASKED)
            higher = tl.maximum(top, tl.max(x, 1) * LOG2E)
            shift = tl.where(higher == -float("inf"), 0.0, higher)
            shrink = tl.exp2(top - shift)
            p = tl.exp2(x * LOG2E - shift[:, None])
            total = total * shrink + tl.sum(p, 1)
            if MEAN:
                mean = tl.dot(p.to(k.dtype), k, mean * shrink[:, None], input_precision="ieee")
            top = higher
    tl.store(out + part * R + rows, (top + tl.log2(total)) / LOG2E, mask=rows < R)
    if MEAN:
        mean = mean / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(means + rows[:, None] * DIM + dims[None, :], mean, mask=rows[:, None] < R)


@triton.jit
def join_kernel(parts, out, R, PARTS, SIZE: tl.constexpr):
    """The logsumexp of each row over the parts."""
    rows = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    top = tl.full((SIZE,), -float("inf"), tl.float32)
    for part in range(0, PARTS):
        top = tl.maximum(top, tl.load(parts + part * R + rows, mask=rows < R, other=0.0))
    shift = tl.where(top == -float("inf"), 0.0, top)
    total = tl.zeros((SIZE,), tl.float32)
    for part in range(0, PARTS):
        total += tl.exp(tl.load(parts + part * R + rows, mask=rows < R, other=0.0) - shift)
    tl.store(out + rows, shift + tl.log(total), mask=rows < R)


@triton.jit
def scale_kernel(x, scale, out, R, DIM: tl.constexpr, ROWS: tl.constexpr):
    """Multiply each row of x by its entry of `scale`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place, inside = rows[:, None] * DIM + tl.arange(0, DIM)[None, :], rows[:, None] < R
    by = tl.load(scale + rows, mask=rows < R, other=0.0)
    tl.store(out + place, tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * by[:, None], mask=inside)


@triton.jit
def backward_kernel(
    queries, keys, out, weights, d_keys, row_keys, column_keys, threshold, R: tl.constexpr, S: tl.constexpr,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    dims = tl.arange(0, DIM)
    k = tl.load(keys + columns[:, None] * DIM + dims[None, :], mask=columns[:, None] < S, other=0.0)
    grad = tl.zeros((COLUMNS, DIM), tl.float32)
    if MASKED:
        own = tl.load(column_keys + columns, mask=columns < S, other=0)
    for start in range(0, R, ROWS):
        rows = start + tl.arange(0, ROWS)
        if R % ROWS == 0:
            q = tl.load(queries + rows[:, None] * DIM + dims[None, :])
        else:
            q = tl.load(queries + rows[:, None] * DIM + dims[None, :], mask=rows[:, None] < R, other=0.0)
        norm = tl.load(out + rows, mask=rows < R, other=0.0) * LOG2E
        weight = tl.load(weights + rows, mask=rows < R, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q), input_precision="ieee") * LOG2E - norm[None, :]) * weight[None, :]
        if MASKED:
            theirs = tl.load(row_keys + rows, mask=rows < R, other=0)
            p = tl.where(kept(own, theirs, threshold), p, 0.0)
        grad = tl.dot(p.to(q.dtype), q, grad, input_precision="ieee")
    tl.store(d_keys + columns[:, None] * DIM + dims[None, :], grad, mask=columns[:, None] < S)


def in_parts(
    q: Tensor, k: Tensor, programs: int, mask: Mask | None, means: Tensor, listed: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The normalisers of each row over parts of the keys, [parts, R], computed by at least `programs` programs if there
    are enough keys. The mean keys are written to `means` [R, d], unless it is empty. If `listed` is given, column i of
    the result belongs to the i-th listed row."""
    (rows, dim), columns = q.shape, len(k)
    tile = FORWARD if means.numel() else WITHOUT_MEAN
    tiles = triton.cdiv(rows, tile["ROWS"])
    parts = min(triton.cdiv(programs, tiles), triton.cdiv(columns, tile["COLUMNS"]))
    part = triton.cdiv(triton.cdiv(columns, parts), tile["COLUMNS"]) * tile["COLUMNS"]
    out = torch.empty(triton.cdiv(columns, part), rows, dtype=torch.float32, device=q.device)
    choices = {"MASKED": mask is not None, "MEAN": means.numel() > 0, "LISTED": listed is not None}
    forward_kernel[(tiles, len(out))](
        *(q, k, out, means, *operands(mask, out), *(listed or (out, out)), rows, columns),
        **choices | {"DIM": dim, "PART": part, "LARGEST": LARGEST} | tile,
    )
    return out


class RowLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, mask: Mask | None, dtype: torch.dtype, low: Tensor | None = None
    ) -> Tensor:
        q, k = queries.to(dtype).contiguous(), (keys.to(dtype) if low is None else low).contiguous()
        mean = ctx.needs_input_grad[0]
        means = torch.empty(q.shape if mean else (0,), dtype=q.dtype, device=q.device)
        out = in_parts(q, k, 1 if mean else BUSY, mask, means)
        out = out[0] if len(out) == 1 else joined(out)
        ctx.save_for_backward(q, k, out, means)
        ctx.mask, ctx.dtypes = mask, (queries.dtype, keys.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, out, means = ctx.saved_tensors
        (rows, dim), columns = q.shape, len(k)
        weights = grads[0].contiguous()
        d_queries = d_keys = None
        if ctx.needs_input_grad[0]:
            d_queries = torch.empty_like(means, dtype=ctx.dtypes[0])
            scale_kernel[(triton.cdiv(rows, SCALED),)](means, weights, d_queries, rows, DIM=dim, ROWS=SCALED)
        if ctx.needs_input_grad[1]:
            d_keys = torch.empty(columns, dim, dtype=ctx.dtypes[1], device=q.device)
            backward_kernel[(triton.cdiv(columns, BACKWARD["COLUMNS"]),)](
                *(q, k, out, weights, d_keys, *operands(ctx.mask, out), rows, columns),
                **{"DIM": dim, "MASKED": ctx.mask is not None} | BACKWARD,
            )
        return d_queries, d_keys, None, None, None


def joined(parts: Tensor) -> Tensor:
    """The logsumexp over the first dimension: [parts, R] -> [R]."""
    out = torch.empty_like(parts[0])
    join_kernel[(triton.cdiv(len(out), JOINED),)](parts, out, len(out), len(parts), SIZE=JOINED)
    return out


def operands(mask: Mask | None, unused: Tensor) -> tuple[Tensor, Tensor, int]:
    """The mask arguments of the kernels."""
    return (unused, unused, 0) if mask is None else (mask.rows, mask.columns, mask.threshold)
