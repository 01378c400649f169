"""Row normalisers of a softmax, of which each process of a job computes a part, a *stripe* of the rows."""

from collections.abc import Callable

import torch
from torch import Tensor

from trellis import distributed

FEWEST = 1 << 15  # if there are fewer rows, every process computes all of them

Norms = Callable[[Tensor, Tensor], Tensor]  # (queries [R, d], keys [S, d]) -> [R]


class Striped(torch.autograd.Function):
    """The row normalisers norms(queries, keys) [R]. Each process computes a stripe of the rows, and the stripes of all
    processes are combined.

    In the backward pass, the gradients with respect to the normalisers are summed over all processes. Each process then
    backpropagates through its stripe only, so the gradients of the weights must be summed over all processes too."""

    @staticmethod
    def forward(ctx, queries: Tensor, keys: Tensor, norms: Norms) -> Tensor:
        own = distributed.share_of(len(queries))
        with torch.enable_grad():
            stripe, known = queries[own].detach().requires_grad_(), keys.detach().requires_grad_()
            made = norms(stripe, known)
        ctx.own, ctx.made, ctx.inputs = own, made, (stripe, known)
        whole = made.new_zeros(len(queries))
        whole[own] = made.detach()
        return distributed.add_up(whole)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        grad = distributed.add_up(grad.contiguous().clone())
        stripe, keys = torch.autograd.grad(ctx.made, ctx.inputs, grad[ctx.own])
        queries = stripe.new_zeros(len(grad), stripe.shape[1])
        queries[ctx.own] = stripe
        return queries, keys, None


def in_stripes(queries: Tensor, keys: Tensor, norms: Norms) -> Tensor:
    """norms(queries, keys), computed jointly by the processes of a job while all of them take a training step."""
    if not distributed.is_stepping() or len(queries) < FEWEST:
        return norms(queries, keys)
    return Striped.apply(queries, keys, norms)
