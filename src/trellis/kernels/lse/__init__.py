"""Softmaxes of products q_i . k_j: row normalisers without storing all logits, by Triton or torch, and matrices."""

import torch
from torch import Tensor

from trellis.kernels.lse import tiled
from trellis.kernels.mask import Mask
from trellis.kernels.optional import installed

row_softmax = tiled.RowSoftmax.apply  # softmax(Q K') by rows: [R, d], [S, d] -> [R, S]


def row_logsumexp(queries: Tensor, keys: Tensor, mask: Mask | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """log sum_j exp(q_i . k_j) over the unmasked entries: [R, d], [S, d] -> [R]; products in `dtype`."""
    dtype = dtype or queries.dtype
    engine = installed("kernels.lse.triton") if queries.is_cuda and dtype is torch.bfloat16 else None
    fitting = engine if engine is not None and engine.fits(queries.shape[1]) else tiled
    return fitting.RowLogSumExp.apply(queries, keys, mask, dtype)
