"""What the emission adds to the mean-field bound, and its gradient: what the M-step climbs."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.families.factorial.loglinear import LogLinear

ENTRIES = {"cpu": 1 << 23, "cuda": 1 << 29}  # tokens x words that exist at a time
CACHE = {"cpu": 1 << 18, "cuda": 1 << 29}  # ... and that are worked on at a time
SMALLEST = {torch.float32: 1e-6, torch.float64: 1e-30}  # see `floor`


def floor(dtype: torch.dtype, layers: int) -> float:
    """What is added to every activity, so that products over all layers stay above zero and can be divided again; the
    bound stays one, since an activity can only grow."""
    return max(SMALLEST[dtype], torch.finfo(dtype).tiny ** (0.8 / layers))


def with_floor(scores: Tensor, shift: Tensor) -> Tensor:
    """exp(theta - shift) [V, K] by states, and a last row of ones, which takes the floor: [K + 1, V]."""
    return torch.nn.functional.pad((scores - shift).exp(), (0, 1), value=1.0).T.contiguous()


class Slope(NamedTuple):
    """A value and its gradient."""

    value: Tensor  # scalar, float64
    theta: Tensor  # [V, S]
    bias: Tensor  # [V]
    expected: Tensor  # [V, S]: the part of theta's gradient that the model would have these tokens visit


@torch.no_grad()
def emission_slope(emission: LogLinear, words: Tensor, probs: Tensor, tilts: Tensor) -> Slope:
    """sum_t [bias_x + sum_mk q (theta_xmk - c) - log sum_y e^bias_y prod_m a_m(y)], concave in theta and bias, where
    a_m(y) = sum_k q_mk exp(theta_ymk - c_mk), and its gradient, for the words [n] of some tokens, their q and c [n, S].

    As the tilt c is optimal, the gradient is that of the bound itself."""
    shift, peak = emission.theta.amax(0), emission.bias.max()
    prior = (emission.bias - peak).exp()
    tables = [with_floor(*pair) for pair in zip(emission.layers(), shift.split(emission.sizes), strict=True)]
    value, bias = words.new_zeros((), dtype=torch.float64), torch.zeros_like(prior)
    drawn = [torch.zeros_like(table) for table in tables]  # [K_m + 1, V]
    count = max(1, CACHE[words.device.type] // emission.num_words)
    for w, q, c in zip(words.split(count), probs.split(count), tilts.split(count), strict=True):
        parts = (q * (shift - c).exp()).split(emission.sizes, -1)
        weights = [torch.nn.functional.pad(part, (0, 1), value=floor(part.dtype, len(parts))) for part in parts]
        activities = [a @ table for a, table in zip(weights, tables, strict=True)]
        product = reduce(torch.mul, activities, prior)
        total = product.sum(-1, keepdim=True)
        gain = (q * (emission.theta[w] - c)).sum(-1) + emission.bias[w] - peak - total.squeeze(-1).log()
        product = product.div_(total)
        value.add_(gain.sum(dtype=torch.float64))
        bias.sub_(product.sum(0))
        for layer, a, weight in zip(drawn, activities, weights, strict=True):
            layer.addmm_(weight.T, torch.div(product, a, out=a))
    expected = torch.cat([(layer * table)[:-1] for layer, table in zip(drawn, tables, strict=True)]).T
    theta = torch.zeros_like(emission.theta).index_add_(0, words, probs).sub_(expected)
    bias.index_add_(0, words, torch.ones_like(words, dtype=prior.dtype))
    return Slope(value, theta, bias, expected)
