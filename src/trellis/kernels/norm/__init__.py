"""LayerNorm(x + y), scaled and shifted, by Triton (which computes in float32) or torch."""

import torch
from torch import Tensor, nn

from trellis.kernels.optional import installed


def add_norm(x: Tensor, y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(s - mean s) / sd s * scale + shift for each row s of x + y: [n, d], [n, d], [d], [d] -> [n, d]."""
    engine = installed("kernels.norm.triton") if x.is_cuda and x.dtype is not torch.float64 else None
    if engine is None or not engine.fits(x.shape[1]):
        return nn.functional.layer_norm(x + y, x.shape[-1:], scale.to(x.dtype), shift.to(x.dtype))
    return engine.AddNorm.apply(x, y, scale, shift)
