"""MAP estimates of categorical distributions in one pass, for small tables on a CPU and for tables on a GPU."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from trellis.kernels.estimates import arrays
from trellis.kernels.optional import installed

SMALL = 1 << 12  # entries up to which torch's fixed cost per operation dominates


def overwritten(counts: Tensor, pseudocount: Any, old: Tensor) -> ModuleType | None:
    """triton.py, whose functions can write their results over the counts, if it can solve this problem."""
    kernels = fused(counts, pseudocount, old)
    return None if kernels is arrays else kernels


def fused(counts: Tensor, pseudocount: Any, old: Tensor) -> ModuleType | None:
    """The module for this problem: arrays.py for few float64 numbers on a CPU, without gradients; triton.py for float32
    on a GPU, with one non-negative pseudocount; None for any other problem."""
    if not counts.is_cuda:
        small = counts.dtype is torch.float64 and old.dtype is torch.float64 and 0 < counts.numel() <= SMALL
        return arrays if small and not (counts.requires_grad or old.requires_grad) else None
    if not (counts.dtype is torch.float32 and old.dtype is torch.float32):
        return None
    if not isinstance(pseudocount, float | int) or pseudocount < 0 or not counts.numel():
        return None
    return installed("kernels.estimates.triton") if counts.is_contiguous() and old.is_contiguous() else None
