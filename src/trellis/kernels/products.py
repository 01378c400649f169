"""Products by way of a lower precision, added up in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.kernels.lse.tiled import product


class LowProduct(torch.autograd.Function):
    """X Y through copies in a lower precision: [n, a], [a, b] and its copy -> [n, b]; gradients are float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, low: Tensor) -> Tensor:
        ctx.save_for_backward(x.to(low.dtype), low)
        return product(x.to(low.dtype), low)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, low = ctx.saved_tensors
        grad, (for_x, for_y, _) = grads[0].to(low.dtype), ctx.needs_input_grad
        return product(grad, low.mT) if for_x else None, product(x.mT, grad) if for_y else None, None


def times(x: Tensor, y: Tensor, low: Tensor | None) -> Tensor:
    """x y, by way of the lower precision where there is one: [..., a], [a, b] -> [..., b]."""
    if low is None:
        return x @ y
    return LowProduct.apply(x.reshape(-1, x.shape[-1]), y, low).view(*x.shape[:-1], y.shape[-1])
