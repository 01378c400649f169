"""Logits between the states of neighbouring steps, out of the queries and keys of a few sets of states."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.kernels.engines import installed
from trellis.kernels.lse.tiled import product
from trellis.kernels.rows import add_rows

Product = Callable[..., Tensor]


def gathered_product(
    left: Tensor, right: Tensor, rows: Tensor | None, columns: Tensor | None, out: torch.dtype, low: torch.dtype
) -> Tensor:
    """left[rows[m]] right[columns[m]] for every m (None: m itself), multiplied in the precision `low`:
    [G, a, b], [H, b, c], [M], [M] -> [M, a, c]."""
    left, right = left.to(low), right.to(low)
    left, right = left if rows is None else left[rows], right if columns is None else right[columns]
    return product(left, right).to(out)


class SetLogits(torch.autograd.Function):
    """x_m = Q[before[m]] K[after[m]]' (before None: m itself): [G, a, d], [H, c, d], [M], [M] -> [M, a, c]."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, before: Tensor | None, after: Tensor, dtype: torch.dtype
    ) -> Tensor:
        q, k = queries.to(dtype), keys.to(dtype)
        fast = installed("pairs") if q.is_cuda and dtype is torch.bfloat16 else None
        ctx.multiply = fast.gathered_product if fast else gathered_product
        ctx.save_for_backward(q, k, before, after)
        ctx.dtypes = queries.dtype, keys.dtype
        return ctx.multiply(q, k.mT, before, after, torch.promote_types(dtype, torch.float32), dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, before, after = ctx.saved_tensors
        d_queries = added(ctx.multiply, grads[0], k, after, before, len(q), parts=1).to(ctx.dtypes[0])
        d_keys = added(ctx.multiply, grads[0].mT, q, before, after, len(k), parts=2).to(ctx.dtypes[1])
        return d_queries, d_keys, None, None, None


def added(
    multiply: Product, left: Tensor, right: Tensor, columns: Tensor | None, index: Tensor | None, count: int, parts: int
) -> Tensor:
    """out[i] = sum of left[m] right[columns[m]] (None: m itself) over the m of that index; index None: over none but
    i itself. They are multiplied in parts, for less memory: [M, a, b], [H, b, c], [M], [M] -> [count, a, c]."""
    dtype = right.dtype
    if index is None or columns is None:
        products = multiply(left, right, None, columns, dtype, dtype)
        return products if index is None else add_rows(products, index, count)
    size = max(1, -(-len(left) // parts))
    pieces = zip(left.split(size), columns.split(size), index.split(size), strict=True)
    totals = (add_rows(multiply(some, right, None, others, dtype, dtype), into, count) for some, others, into in pieces)
    return reduce(Tensor.add_, totals)


def set_logits(queries: Tensor, keys: Tensor, before: Tensor | None, after: Tensor, dtype: torch.dtype) -> Tensor:
    """q_i . k_j between the sets before[m] (None: m itself) and after[m]: [G, a, d], [H, c, d] -> [M, a, c]."""
    return SetLogits.apply(queries, keys, before, after, dtype)


def pair_logits(queries: Tensor, keys: Tensor, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """q_i . k_j for the sets of neighbouring steps: [G, k, d], [G, k, d], rows [B, T] -> [B, T-1, k, k]."""
    before, after = rows[:, :-1].flatten(), rows[:, 1:].flatten()
    logits = set_logits(queries, keys, before, after, dtype or queries.dtype)
    return logits.view(len(rows), rows.shape[1] - 1, *logits.shape[1:])
