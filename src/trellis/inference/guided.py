"""Samples of a left-to-right model guided by an HMM, without computing corrections for the whole vocabulary.

The next token has weight p(x) c(x)^alpha, where p is the guided model and c(x) = p(constraint | tokens so far, x) under
the HMM. Tokens are proposed from p(x) M(x)^alpha, where M >= c is cheap to compute, and accepted with probability (c(x)
/ M(x))^alpha. If no proposal of a sequence is accepted, c is computed for all tokens. The sample is exact in both
cases."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.devices import draw_uniform
from trellis.inference.constrained import ENTRIES, Position, Product
from trellis.transitions.base import invert, search_cumulative

ROUNDS = (4, 16, 64)  # proposals per sequence


def weighted(log_probs: Tensor, corrections: Tensor, alpha: float) -> Tensor:
    """log p(x) + alpha log c(x); -inf where c is zero, even if alpha is zero."""
    return (log_probs + alpha * corrections).masked_fill(corrections == -torch.inf, -torch.inf)


def sample_next(
    product: Product, position: Position, log_probs: Tensor, alpha: float, generator: torch.Generator | None = None
) -> Tensor:
    """Sample the next token of B sequences from weights p(x) c(x)^alpha, given log p(x) [B, V]: [B]. The result is -1
    for a sequence whose weights are all zero."""
    tokens, bounds = torch.full_like(position.steps, -1), product.largest_corrections(position)
    cumulative = relative(weighted(log_probs, bounds, alpha)).cumsum(-1)
    left = (cumulative[:, -1] > 0).nonzero().flatten()
    for tries in ROUNDS:
        if not len(left):
            return tokens
        uniform = draw_uniform((len(tokens), 2, tries), product.device, generator)[left]
        proposed = search_cumulative(cumulative[left], uniform[:, 0])
        pieces = torch.arange(len(left), device=left.device).split(max(1, ENTRIES // (tries * product.prior.shape[1])))
        found = torch.cat([product.corrections_of(position.some(left[some]), proposed[some]) for some in pieces])
        accepted = uniform[:, 1].log() < weighted(-alpha * bounds[left].gather(-1, proposed), found, alpha)
        some, first = accepted.any(-1), accepted.int().argmax(-1, keepdim=True)
        tokens[left[some]] = proposed.gather(-1, first).squeeze(-1)[some]
        left = left[~some]
    whole = relative(weighted(log_probs[left], product.corrections(position.some(left)), alpha))
    drawn = invert(whole, draw_uniform((len(tokens),), product.device, generator)[left])
    tokens[left] = drawn.masked_fill(whole.sum(-1) == 0, -1)
    return tokens


def relative(log_weights: Tensor) -> Tensor:
    """exp(weights - largest weight), in float64; zero if all weights are -inf."""
    top = log_weights.amax(-1, keepdim=True)
    return (log_weights - top.masked_fill(top == -torch.inf, 0.0)).double().exp()
