"""x ← x + s (y − x) in place, with a scalar s on the device, by Triton or torch."""

import torch
from torch import Tensor

from trellis.kernels.optional import installed


def lerp_(x: Tensor, y: Tensor, share: Tensor) -> None:
    """Move x [...] towards y [...] by the fraction share []. On a GPU, Triton avoids re-reading it for every entry."""
    engine = installed("kernels.lerp.triton") if x.is_cuda and x.dtype is torch.float32 else None
    if engine is None or not (x.is_contiguous() and y.is_contiguous()):
        x.lerp_(y, share)
    else:
        engine.lerp_(x, y, share)
