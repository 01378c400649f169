"""Row operations with custom backward passes, where torch's are slow: gathers with frequently repeated indices, and
sums over many rows."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.kernels.lse.tiled import product
from trellis.kernels.optional import installed

FEW = 1024  # up to this many rows, a one-hot product beats scatter-add
MOST, WIDE = 1 << 13, 1024  # maximum rows that a GPU adds without sorting them; minimum columns for sorting them


def add_rows(values: Tensor, index: Tensor, count: int) -> Tensor:
    """out[i] = sum of the values with index i: [N, ...], [N] -> [count, ...]; at least float32."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    engine = installed("kernels.segments.triton") if values.is_cuda and suits_gpu(flat, count) else None
    if engine is not None:
        total = engine.add_rows(flat, index, count)  # in a fixed order, unlike index_add
    elif values.is_cuda and count <= FEW:
        one_hot = torch.zeros(count, len(flat), dtype=flat.dtype, device=flat.device)
        total = product(one_hot.scatter_(0, index[None], 1), flat)
    else:
        wide = torch.promote_types(flat.dtype, torch.float32)
        total = torch.zeros(count, flat.shape[1], dtype=wide, device=flat.device).index_add_(0, index, flat.to(wide))
    return total.view(count, *values.shape[1:])


def suits_gpu(values: Tensor, count: int) -> bool:
    """Whether rows [N, D] are added by a kernel: if they are wide, or if few rows are added to many sums."""
    single = values.dtype in (torch.float32, torch.bfloat16)
    return single and (values.shape[1] >= WIDE or (count > FEW and len(values) <= MOST))


class Take(torch.autograd.Function):
    """values[index], with the backward pass of `add_rows`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count, ctx.dtype = len(values), values.dtype
        return values[index.flatten()].view(*index.shape, *values.shape[1:])  # one list: a faster kernel

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        grad = grads[0].reshape(index.numel(), *grads[0].shape[index.dim() :])
        return add_rows(grad, index.flatten(), ctx.count).to(ctx.dtype), None


class Pick(torch.autograd.Function):
    """values[index], with a fast gradient.

    The gradient of values[i] is that of entry inverse[i] of the result. If other entries have index i, too, their
    gradient must be zero. If inverse is None, indices must be distinct."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, inverse: Tensor | None) -> Tensor:
        ctx.save_for_backward(index, inverse)
        ctx.shape = values.shape
        return values[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        index, inverse = ctx.saved_tensors
        if inverse is not None:
            return grads[0][inverse], None, None
        return grads[0].new_zeros(ctx.shape).index_copy_(0, index, grads[0]), None, None


class PickBoth(torch.autograd.Function):
    """values[index] for ascending indices, and a copy of it in another precision."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.engine = installed("kernels.picks.triton") if values.is_cuda and values.is_contiguous() else None
        ctx.save_for_backward(index)
        ctx.shape = values.shape
        if ctx.engine is not None:
            return ctx.engine.pick(values, index, dtype)
        picked = values[index]
        return picked, picked.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (index,), (grad, low) = ctx.saved_tensors, grads
        if ctx.engine is not None:
            return ctx.engine.spread(grad, low, index, ctx.shape[0]), None, None
        return grad.new_zeros(ctx.shape).index_copy_(0, index, grad + low.to(grad.dtype)), None, None


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(W x + b)."""
    if x.is_cuda:  # in one kernel
        return torch._addmm_activation(bias, x, weight.T)
    return torch.nn.functional.linear(x, weight, bias).relu_()


def layer_gradients(grad: Tensor, x: Tensor, out: Tensor, dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    """The gradients with respect to W x + b, to W and to b, given the gradient with respect to relu(W x + b)."""
    grad = torch.ops.aten.threshold_backward(grad, out, 0)
    return grad, product(grad.T, x).to(dtypes[0]), sum_rows(grad).to(dtypes[1])


class Rectified(torch.autograd.Function):
    """relu(W x + b) for every row of x [n, d], in the precision of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        low = weight.to(x.dtype)
        out = layer(x, low, bias.to(x.dtype))
        ctx.save_for_backward(x, low, out)
        ctx.dtypes = weight.dtype, bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, out = ctx.saved_tensors
        grad, *of_layer = layer_gradients(grads[0], x, out, ctx.dtypes)
        return grad @ weight, *of_layer


class WithRectified(torch.autograd.Function):
    """The pair of x and relu(B relu(A x + a) + b).

    If the two outputs are added, their gradients are one tensor. On a GPU, the last matrix product of the backward pass
    is then added to this tensor in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        inner, a, outer, b = (weight.to(x.dtype) for weight in weights)
        hidden = layer(x, inner, a)
        out = layer(hidden, outer, b)
        ctx.save_for_backward(x, inner, outer, hidden, out)
        ctx.dtypes = [weight.dtype for weight in weights]
        return x, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, inner, outer, hidden, out = ctx.saved_tensors
        grad, *of_outer = layer_gradients(grads[1], hidden, out, ctx.dtypes[2:])
        grad, *of_inner = layer_gradients(grad @ outer, x, hidden, ctx.dtypes[:2])
        if not ctx.needs_input_grad[0]:
            return None, *of_inner, *of_outer
        shared = grads[0].data_ptr() == grads[1].data_ptr() and grads[0].is_contiguous()
        if grad.is_cuda and shared:  # both outputs were added; the gradient of the sum is not needed any more
            return grads[0].addmm_(grad, inner), *of_inner, *of_outer
        return grads[0] + grad @ inner, *of_inner, *of_outer


def sum_rows(x: Tensor) -> Tensor:
    """The sum of all rows, as a product with ones: [n, d] -> [d]."""
    return product(x.new_ones(1, len(x)), x)[0]


def rectified(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(W x + b): [n, d], [e, d], [e] -> [n, e]."""
    return Rectified.apply(x, weight, bias)


def with_rectified(x: Tensor, inner: Tensor, a: Tensor, outer: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """x and relu(B relu(A x + a) + b), to be added: [n, d], [e, d], [e], [d, e], [d] -> [n, d], [n, d]."""
    return WithRectified.apply(x, inner, a, outer, b)


def take(values: Tensor, index: Tensor) -> Tensor:
    """values[index] with repeated indices: [N, ...], [...] -> [..., ...]."""
    return Take.apply(values, index)


def pick(values: Tensor, index: Tensor, inverse: Tensor | None = None) -> Tensor:
    """values[index] with the backward pass of `Pick`: [N, ...], [M] -> [M, ...]."""
    return Pick.apply(values, index, inverse)


def pick_both(values: Tensor, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """values[index] with ascending indices, and a copy in another precision: [K, d], [n] -> [n, d], [n, d]."""
    return PickBoth.apply(values, index, dtype)


class LowProduct(torch.autograd.Function):
    """X Y in a lower precision, given Y and a copy of it in that precision: [n, a], [a, b] -> [n, b]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, low: Tensor) -> Tensor:
        ctx.save_for_backward(x.to(low.dtype), low)
        ctx.dtype = y.dtype
        return product(x.to(low.dtype), low)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, low = ctx.saved_tensors
        grad, (for_x, for_y, _) = grads[0].to(low.dtype), ctx.needs_input_grad
        d_x = product(grad, low.mT) if for_x else None
        return d_x, product(x.mT, grad).to(ctx.dtype) if for_y else None, None


def times(x: Tensor, y: Tensor, low: Tensor | None) -> Tensor:
    """The product x y: [..., a], [a, b] -> [..., b]. If `low`, a copy of y in a lower precision, is given, the product
    is computed in this precision."""
    if low is None:
        return x @ y
    return LowProduct.apply(x.reshape(-1, x.shape[-1]), y, low).view(*x.shape[:-1], y.shape[-1])


class ScaledSoftmax(torch.autograd.Function):
    """exp(log_scale_i) softmax(logits_i): [..., n], [...] -> [..., n]. Exponentials are computed once."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, log_scale: Tensor) -> Tensor:
        probs, scale = logits.softmax(-1), log_scale.exp()
        ctx.save_for_backward(probs, scale)
        return probs * scale.unsqueeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        probs, scale = ctx.saved_tensors
        total = torch.linalg.vecdot(probs, grads[0])
        return (grads[0] - total.unsqueeze(-1)).mul_(probs).mul_(scale.unsqueeze(-1)), total * scale


def scaled_softmax(logits: Tensor, log_scale: Tensor) -> Tensor:
    """exp(log_scale_i) softmax(logits_i): [..., n], [...] -> [..., n]."""
    return ScaledSoftmax.apply(logits, log_scale)
