"""The reference: the matrix written out."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.kernels.mask import Mask


def row_logsumexp(queries: Tensor, keys: Tensor, mask: Mask | None = None) -> Tensor:
    """log sum_j exp(q_i . k_j) over the entries that the mask keeps: [R, d], [S, d] -> [R]."""
    logits = queries @ keys.T
    return (logits if mask is None else logits.masked_fill(~mask.keeps(), -torch.inf)).logsumexp(-1)
