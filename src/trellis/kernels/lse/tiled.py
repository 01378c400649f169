"""Row normalisers and softmaxes by matrix products over a few rows at a time."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.kernels.mask import Mask
from trellis.kernels.optional import recent

MIXED = (2, 11)  # the oldest torch with which products of bfloat16 with a float32 result were run
ENTRIES = {"cpu": 1 << 22, "cuda": 1 << 28}  # maximum logits in memory at a time
ROWS, COLUMNS = 256, 1024  # of a tile of logits that stays in the cache of a CPU


class RowLogSumExp(torch.autograd.Function):
    """The row normalisers n_i = log sum_j exp(q_i . k_j). If g_i is the gradient with respect to n_i, and p_ij =
    exp(q_i . k_j - n_i) g_i, then dQ = p K and dK = p' Q. The backward pass computes the logits again."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, mask: Mask | None, dtype: torch.dtype, low: Tensor | None = None
    ) -> Tensor:
        q, k = queries.to(dtype), keys.to(dtype) if low is None else low
        out = torch.empty(len(q), dtype=torch.promote_types(dtype, torch.float32), device=q.device)
        if q.is_cuda:
            for rows in chunks(len(q), len(k), q.device):
                out[rows] = logits(q[rows], k, mask, rows).logsumexp(-1)
        else:
            for rows in slices(len(q), ROWS):
                out[rows] = in_cache(q, k, mask, rows)
        ctx.save_for_backward(q, k, out.masked_fill(out == -torch.inf, 0.0))  # rows whose logits are all -inf
        ctx.mask, ctx.dtypes = mask, (queries.dtype, keys.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, out = ctx.saved_tensors
        d_queries = torch.empty_like(q, dtype=ctx.dtypes[0])
        d_keys = torch.zeros_like(k, dtype=ctx.dtypes[1])
        for rows in chunks(len(q), len(k), q.device):
            probs = (logits(q[rows], k, ctx.mask, rows) - out[rows, None]).exp_().mul_(grads[0][rows, None])
            probs = probs.to(q.dtype)
            d_queries[rows] = product(probs, k)
            d_keys += product(probs.T, q[rows])
        return d_queries, d_keys, None, None, None


class RowSoftmax(torch.autograd.Function):
    """The softmax A of each row of Q K', in the precision of `low`, a copy of K. If g is the gradient with respect to
    A, and x_ij = A_ij (g_ij - sum_j' A_ij' g_ij'), then dQ = x K and dK = x' Q. Besides A and g, only a few rows are in
    memory."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, low: Tensor) -> Tensor:
        q = queries.to(low.dtype)
        out = low.new_empty(len(q), len(low))
        for rows in chunks(len(q), len(low), out.device):
            out[rows] = logits(q[rows], low).softmax(-1)
        ctx.save_for_backward(q, low, out)
        ctx.dtypes = queries.dtype, keys.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, out = ctx.saved_tensors
        d_queries, d_keys = torch.empty_like(q, dtype=ctx.dtypes[0]), torch.zeros_like(k, dtype=ctx.dtypes[1])
        for rows in chunks(len(q), len(k), out.device):
            probs = out[rows].to(torch.promote_types(out.dtype, torch.float32))
            slopes = probs * grads[0][rows]
            slopes = slopes.addcmul_(probs, slopes.sum(-1, keepdim=True), value=-1).to(q.dtype)
            d_queries[rows] = product(slopes, k)
            d_keys += product(slopes.T, q[rows])
        return d_queries, d_keys, None


def chunks(rows: int, columns: int, device: torch.device) -> Iterator[slice]:
    """Slices of rows whose logits fit in memory."""
    return slices(rows, ENTRIES[device.type] // max(columns, 1))


def slices(length: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def in_cache(queries: Tensor, keys: Tensor, mask: Mask | None, rows: slice) -> Tensor:
    """log sum_j exp(q_i . k_j) for some rows, computed from a few keys at a time: [rows]."""
    top = torch.full((rows.stop - rows.start,), -torch.inf, dtype=torch.promote_types(keys.dtype, torch.float32))
    total = torch.zeros_like(top)
    for columns in slices(len(keys), COLUMNS):
        here = logits(queries[rows], keys[columns], mask, rows, columns)
        before, top = top, torch.maximum(top, here.amax(-1))
        shift = top.masked_fill(top == -torch.inf, 0.0)
        total = total * (before - shift).exp() + here.sub_(shift.unsqueeze(-1)).exp_().sum(-1)
    return top + total.log()


def logits(
    queries: Tensor, keys: Tensor, mask: Mask | None = None, rows: slice = slice(None), columns: slice = slice(None)
) -> Tensor:
    """The logits Q K' [rows, columns], -inf where masked. Products of bfloat16 are accumulated in float32."""
    out = product(queries, keys.T)
    return out if mask is None else out.masked_fill_(~mask.keeps(rows, columns), -torch.inf)


def product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product whose result is at least float32."""
    if left.dtype is not torch.bfloat16:
        return left @ right
    if left.is_cuda and recent("torch", MIXED):
        return (torch.mm if left.dim() == 2 else torch.bmm)(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
