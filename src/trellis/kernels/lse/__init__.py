"""The softmax of q_i . k_j over the keys k_j: the normaliser of each row, computed by Triton or torch without storing
all logits, and the whole matrix."""

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.kernels.lse import tiled
from trellis.kernels.mask import Mask
from trellis.kernels.optional import installed


def row_softmax(queries: Tensor, keys: Tensor, low: Tensor | None = None) -> Tensor:
    """softmax(Q K') by rows: [R, d], [S, d] -> [R, S]. Products and the result have the precision of `low`, a copy of
    the keys, if it is given."""
    return tiled.RowSoftmax.apply(queries, keys, keys.detach() if low is None else low)


def row_logsumexp(
    queries: Tensor,
    keys: Tensor,
    mask: Mask | None = None,
    dtype: torch.dtype | None = None,
    low: Tensor | None = None,
) -> Tensor:
    """log sum_j exp(q_i . k_j) over the unmasked entries: [R, d], [S, d] -> [R]. Products are computed in `dtype`;
    `low`, if given, is a copy of the keys in this precision."""
    dtype = dtype or queries.dtype
    return (gpu_engine(queries, dtype) or tiled).RowLogSumExp.apply(queries, keys, mask, dtype, low)


def gpu_engine(queries: Tensor, dtype: torch.dtype) -> ModuleType | None:
    engine = installed("kernels.lse.triton") if queries.is_cuda and dtype is torch.bfloat16 else None
    return engine if engine is not None and engine.fits(queries.shape[1]) else None


class Known(NamedTuple):
    """Row normalisers that are already known: those of some states, over all keys."""

    ids: Tensor  # [K']: distinct states
    log_norm: Tensor  # [K']
    num_states: int  # of the model
    keys: Tensor  # [S, d], in the precision of products


@torch.no_grad()
def logsumexp_of_states(queries: Tensor, names: Tensor, known: Known) -> Tensor:
    """The row normalisers [R] of queries [R, d], which belong to the states `names` [R]. On a GPU, known normalisers
    are not computed again, and if a state occurs several times, its normaliser is computed once."""
    keys = known.keys
    reuse = installed("kernels.lse.known") if gpu_engine(queries, keys.dtype) else None
    if reuse is None:
        return row_logsumexp(queries, keys, None, keys.dtype)
    given = queries.to(keys.dtype), keys, names, known.ids, known.log_norm
    return reuse.logsumexp(*(tensor.contiguous() for tensor in given), known.num_states)
