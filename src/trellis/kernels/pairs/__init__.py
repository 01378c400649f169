"""Logits between the states of adjacent steps, from the queries and keys of a few sets of states."""

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.kernels.lse.tiled import product
from trellis.kernels.optional import installed
from trellis.kernels.rows import add_rows


def gathered_product(
    left: Tensor, right: Tensor, rows: Tensor | None, columns: Tensor | None, out: torch.dtype, low: torch.dtype
) -> Tensor:
    """The product left[rows[m]] right[columns[m]] for every m (if `rows` or `columns` is None, the index is m), in the
    precision `low`: [G, a, b], [H, b, c], [M], [M] -> [M, a, c]."""
    left, right = left.to(low), right.to(low)
    left, right = left if rows is None else left[rows], right if columns is None else right[columns]
    return product(left, right).to(out)


def summed_product(left: Tensor, right: Tensor, columns: Tensor, index: Tensor, count: int) -> Tensor:
    """out[i] = sum of left[m] right[columns[m]] over all m with index[m] = i, in float32 or float64:
    [M, a, b], [H, b, c], [M], [M] -> [count, a, c]."""
    return add_rows(gathered_product(left, right, None, columns, right.dtype, right.dtype), index, count)


class SetLogits(torch.autograd.Function):
    """The logits Q[before[m]] K[after[m]]' for every m (if `before` is None, its index is m):
    [G, a, d], [H, c, d], [M], [M] -> [M, a, c]."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, before: Tensor | None, after: Tensor, dtype: torch.dtype
    ) -> Tensor:
        q, k = queries.to(dtype), keys.to(dtype)
        before, after = None if before is None else before.contiguous(), after.contiguous()
        ctx.engine = engine_for(q)
        ctx.save_for_backward(q, k, before, after)
        ctx.dtypes = queries.dtype, keys.dtype
        wide = torch.promote_types(dtype, torch.float32)
        return ctx.engine.gathered_product(q, k.mT, before, after, wide, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, before, after = ctx.saved_tensors
        grad, engine = grads[0], ctx.engine
        if before is None:
            d_queries = engine.gathered_product(grad, k, None, after, q.dtype, q.dtype)
            d_keys = engine.summed_product(grad.mT, q, torch.arange(len(q), device=q.device), after, len(k))
        else:
            d_queries = engine.summed_product(grad, k, after, before, len(q))
            d_keys = engine.summed_product(grad.mT, q, before, after, len(k))
        return d_queries.to(ctx.dtypes[0]), d_keys.to(ctx.dtypes[1]), None, None, None


def engine_for(values: Tensor) -> ModuleType:
    """The module that computes the products: Triton for bfloat16 on a GPU, numba on a CPU, or else this one."""
    if values.is_cuda:
        name = "triton" if values.dtype is torch.bfloat16 else ""
    else:
        name = "compiled" if values.dtype in (torch.float32, torch.float64) else ""
    return (installed(f"kernels.pairs.{name}") if name else None) or sys.modules[__name__]


def set_logits(queries: Tensor, keys: Tensor, before: Tensor | None, after: Tensor, dtype: torch.dtype) -> Tensor:
    """The logits q_i . k_j between the states i of set before[m] and the states j of set after[m], for every m (if
    `before` is None, its set is m): [G, a, d], [H, c, d], [M], [M] -> [M, a, c]."""
    return SetLogits.apply(queries, keys, before, after, dtype)


@torch.no_grad()
def block_probabilities(queries: Tensor, keys: Tensor, norms: Tensor, dtype: torch.dtype | None) -> Tensor:
    """exp(q_i . k_j - n_i), with products in `dtype`: [M, a, d], [M, c, d], [M, a] -> [M, a, c]."""
    low = dtype or keys.dtype
    engine = installed("kernels.pairs.triton") if queries.is_cuda and low is torch.bfloat16 else None
    if engine is not None:
        given = queries.to(low), keys.to(low).mT, None, None, torch.float32, low
        return engine.gathered_product(*given, norms.contiguous())
    return (product(queries.to(low), keys.to(low).mT) - norms.unsqueeze(-1)).exp()


def pair_logits(queries: Tensor, keys: Tensor, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The logits q_i . k_j between the states of adjacent steps, if step t of sequence b has the states of set rows[b,
    t]: [G, k, d], [G, k, d], [B, T] -> [B, T-1, k, k]."""
    before, after = rows[:, :-1].flatten(), rows[:, 1:].flatten()
    logits = set_logits(queries, keys, before, after, dtype or queries.dtype)
    return logits.view(len(rows), rows.shape[1] - 1, *logits.shape[1:])
