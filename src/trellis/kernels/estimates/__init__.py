"""MAP estimates of categorical distributions in one pass, on a GPU; dispatched."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from trellis.kernels.optional import installed


def fused(counts: Tensor, pseudocount: Any, old: Tensor) -> ModuleType | None:
    """The kernels of triton.py, if they apply: float32 on a GPU, and one pseudocount that is not negative."""
    if not (counts.is_cuda and counts.dtype is torch.float32 and old.dtype is torch.float32):
        return None
    if not isinstance(pseudocount, float | int) or pseudocount < 0 or not counts.numel():
        return None
    return installed("kernels.estimates.triton") if counts.is_contiguous() and old.is_contiguous() else None
