"""Samples of a left-to-right model guided by an HMM. The HMM usually corrects a few proposed tokens, not all tokens.

The next token x has weight p(x) c(x)^alpha, where p is the guided model and c(x) = p(constraint | tokens so far, x) is
the correction, a probability under the HMM. Tokens are proposed from p(x) M(x)^alpha, where M >= c is cheap to compute,
and accepted with probability (c(x) / M(x))^alpha. If no proposal of a sequence is accepted, c is computed for all
tokens. The sample is exact in both cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trellis.devices import draw_uniform
from trellis.inference.constrained import ENTRIES, Position, Product, draw_kernels
from trellis.kernels.lse.tiled import slices
from trellis.transitions.base import invert, invert_each

ROUNDS = (4, 16, 64)  # proposals per sequence
REJECTED = -2  # in the place of a token: no proposal was accepted


def weighted(log_probs: Tensor, corrections: Tensor, alpha: float) -> Tensor:
    """log p(x) + alpha log c(x); -inf where c is zero, even if alpha is zero."""
    return (log_probs + alpha * corrections).masked_fill(corrections == -torch.inf, -torch.inf)


def sample_next(
    product: Product, position: Position, log_probs: Tensor, alpha: float, generator: torch.Generator | None = None
) -> Tensor:
    """Sample the next token of B sequences from weights p(x) c(x)^alpha, given log p(x) [B, V]: [B]. The result is -1
    for a sequence whose weights are all zero."""
    tokens, left = torch.full_like(position.steps, REJECTED), None
    for tries in ROUNDS:
        uniform = draw_uniform((len(tokens), 2, tries), product.device, generator)
        given = (position, log_probs, uniform)
        if left is not None:
            given = (position.some(left), log_probs[left], uniform[left])
        found = product.replayed(propose, *given, alpha)
        tokens = found if left is None else tokens.index_put((left,), found)
        if int(tokens.amin()) > REJECTED:
            return tokens
        left = (tokens == REJECTED).nonzero().squeeze(-1)
    left = torch.arange(len(tokens), device=product.device) if left is None else left
    whole = relative(weighted(log_probs[left], product.corrections(position.some(left)), alpha))
    drawn = invert(whole, draw_uniform((len(tokens),), product.device, generator)[left])
    tokens[left] = drawn.masked_fill(whole.sum(-1) == 0, -1)
    return tokens


def propose(product: Product, position: Position, log_probs: Tensor, uniform: Tensor, alpha: float) -> Tensor:
    """The first accepted token of each sequence; REJECTED if none was accepted, -1 if no token is possible. The random
    numbers `uniform` [B, 2, n] propose and accept n tokens."""
    if kernels := draw_kernels(log_probs):
        return propose_by(kernels, product, position, log_probs, uniform, alpha)
    bounds = product.largest_corrections(position)
    weights = relative(weighted(log_probs, bounds, alpha))
    proposed = invert_each(weights, uniform[:, 0])
    found = torch.cat([product.corrections_of(position.some(rows), proposed[rows]) for rows in parts(product, uniform)])
    accepted = uniform[:, 1].log() < weighted(-alpha * bounds.gather(-1, proposed), found, alpha)
    first = proposed.gather(-1, accepted.int().argmax(-1, keepdim=True)).squeeze(-1)
    return first.masked_fill(~accepted.any(-1), REJECTED).masked_fill(weights.amax(-1) == 0, -1)


def propose_by(
    kernels: Any, product: Product, position: Position, log_probs: Tensor, uniform: Tensor, alpha: float
) -> Tensor:
    """`propose` by compiled code."""
    table, power = product.table, torch.full((), alpha, dtype=torch.float64, device=product.device)
    proposed = kernels.propose(table, position, log_probs, product.bounds, uniform[:, 0], power)

    def first(rows: slice) -> Tensor:
        likelihoods = product.likelihoods.rows(proposed[rows].clamp(min=0).flatten())
        numbers = product.bounds, uniform[rows], power
        return kernels.accept(table, position.some(rows), proposed[rows], likelihoods, *numbers, REJECTED)

    found = [first(rows) for rows in parts(product, uniform)]
    return torch.cat(found) if len(found) > 1 else found[0]


def parts(product: Product, uniform: Tensor) -> list[slice]:
    """The sequences whose proposals are compared at a time."""
    return list(slices(len(uniform), ENTRIES // (uniform.shape[2] * product.prior.shape[1])))


def relative(log_weights: Tensor) -> Tensor:
    """exp(weights - largest weight), in float64; zero if all weights are -inf."""
    top = log_weights.amax(-1, keepdim=True)
    return (log_weights - top.masked_fill(top == -torch.inf, 0.0)).double().exp()
