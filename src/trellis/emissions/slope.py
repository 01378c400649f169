"""What the emission adds to the mean-field bound, and its gradient: what the M-step climbs."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions.loglinear import LogLinear

ENTRIES = {"cpu": 1 << 25, "cuda": 1 << 29}  # tokens x words that exist at a time
CACHE = {"cpu": 1 << 18, "cuda": 1 << 29}  # ... and that are worked on at a time
SMALLEST = {torch.float32: 1e-6, torch.float64: 1e-30}  # an activity beneath this counts as this, so that products of
# several stay above zero and can be divided again; the bound stays one, since an activity can only grow


class Slope(NamedTuple):
    """A value and its gradient."""

    value: Tensor  # scalar, float64
    theta: Tensor  # [V, S]
    bias: Tensor  # [V]


@torch.no_grad()
def emission_slope(emission: LogLinear, words: Tensor, probs: Tensor, tilts: Tensor) -> Slope:
    """sum_t [bias_x + sum_mk q (theta_xmk - c) - log sum_y e^bias_y prod_m a_m(y)], concave in theta and bias, where
    a_m(y) = sum_k q_mk exp(theta_ymk - c_mk), and its gradient, for the words [n] of some tokens, their q and c [n, S].

    As the tilt c is optimal, the gradient is that of the bound itself."""
    shift, peak = emission.theta.amax(0), emission.bias.max()
    table, prior = (emission.theta - shift).exp(), (emission.bias - peak).exp()
    layers = [layer.T.contiguous() for layer in table.split(emission.sizes, -1)]  # [K_m, V]
    found = Slope(words.new_zeros((), dtype=torch.float64), torch.zeros_like(table), torch.zeros_like(prior))
    drawn = [torch.zeros_like(layer) for layer in layers]
    count = max(1, CACHE[words.device.type] // emission.num_words)
    for w, q, c in zip(words.split(count), probs.split(count), tilts.split(count), strict=True):
        weights = (q * (shift - c).exp()).split(emission.sizes, -1)
        activities = [(a @ layer).clamp_(min=SMALLEST[table.dtype]) for a, layer in zip(weights, layers, strict=True)]
        product = reduce(torch.mul, activities, prior)
        total = product.sum(-1, keepdim=True)
        gain = (q * (emission.theta[w] - c)).sum(-1) + emission.bias[w] - peak - total.squeeze(-1).log()
        product = product.div_(total)
        found.value.add_(gain.sum(dtype=torch.float64))
        found.bias.sub_(product.sum(0))
        for layer, a, weight in zip(drawn, activities, weights, strict=True):
            layer.addmm_(weight.T, torch.div(product, a, out=a))
    found.theta.index_add_(0, words, probs).sub_(torch.cat(drawn).T * table)
    found.bias.index_add_(0, words, torch.ones_like(words, dtype=prior.dtype))
    return found
