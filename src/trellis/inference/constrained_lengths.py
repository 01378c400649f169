"""The numbers of tokens of sequences in the product of a chain and an automaton."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.inference.constrained import ENTRIES, Position, Product, log_dot
from trellis.kernels.lse.tiled import slices


def length_probs(product: Product, position: Position) -> Tensor:
    """p(number of tokens | tokens so far, constraint) of one sequence, computed by a forward pass: [most + 1]."""
    found = torch.full((product.span.most + 1,), -torch.inf, dtype=torch.float64, device=product.device)
    ahead, states, scale = position.ahead, position.states, 0.0
    for t in range(int(position.steps[0]), product.span.most + 1):
        steps = torch.full_like(states, t)
        ends = product.lattice.may_end(steps, states)
        found[t] = log_dot(ahead, product.ends)[ends].logsumexp(0) + scale
        pair, label, index, states = product.lattice.onward(t, states)
        joint = ahead.new_zeros(len(states), ahead.shape[1])
        for some in slices(len(pair), ENTRIES // ahead.shape[1]):
            joint.index_add_(0, index[some], ahead[pair[some]] * product.sums[label[some]])
        total = joint.sum()
        if total == 0:
            break
        ahead, scale = product.moves.forward(joint / total), scale + float(total.double().log())
    return (found - found.logsumexp(0)).exp()


def beyond(product: Product, position: Position) -> float:
    """log p(more than `most` tokens | tokens so far) of one sequence, irrespective of the constraint."""
    if product.span.end is None:
        return float("-inf")
    ahead, scale, steps = position.ahead, 0.0, int(position.steps[0])
    for t in range(steps, product.span.most + 1):
        joint = ahead * (1 - product.ends)
        total = joint.double().sum()
        scale += float(total.log())
        if total == 0 or t == product.span.most:
            break
        ahead = product.moves.forward(joint / total.to(joint.dtype))
    return min(scale, 0.0)
