"""Logits between the states of neighbouring steps, out of the queries and keys of a few sets of states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.kernels.lse.tiled import product
from trellis.kernels.rows import add_rows


class PairLogits(torch.autograd.Function):
    """x_m = Q[before[m]] K[after[m]]': [G, k, d], [G, k, d], [M], [M] -> [M, k, k]."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, before: Tensor, after: Tensor, dtype: torch.dtype) -> Tensor:
        q, k = queries.to(dtype), keys.to(dtype)
        ctx.save_for_backward(q, k, before, after)
        ctx.dtypes = queries.dtype, keys.dtype
        return product(q[before], k[after].mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, before, after = ctx.saved_tensors
        grad = grads[0].to(q.dtype)
        d_queries = add_rows(torch.bmm(grad, k[after]), before, len(q)).to(ctx.dtypes[0])
        d_keys = add_rows(torch.bmm(grad.mT, q[before]), after, len(k)).to(ctx.dtypes[1])
        return d_queries, d_keys, None, None, None


def pair_logits(queries: Tensor, keys: Tensor, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """q_i . k_j for the sets of neighbouring steps: [G, k, d], [G, k, d], rows [B, T] -> [B, T-1, k, k]."""
    before, after = rows[:, :-1].flatten(), rows[:, 1:].flatten()
    logits = PairLogits.apply(queries, keys, before, after, dtype or queries.dtype)
    return logits.view(len(rows), rows.shape[1] - 1, *logits.shape[1:])
