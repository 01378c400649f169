"""x ← x + s (y − x) in place, with a number s that lives on the device; dispatched."""

import torch
from torch import Tensor

from trellis.kernels.optional import installed


def lerp_(x: Tensor, y: Tensor, share: Tensor) -> None:
    """x [...] moves towards y [...] by its share []; torch reads a share on a GPU once for every entry."""
    engine = installed("kernels.lerp.triton") if x.is_cuda and x.dtype is torch.float32 else None
    if engine is None or not (x.is_contiguous() and y.is_contiguous()):
        x.lerp_(y, share)
    else:
        engine.lerp_(x, y, share)
