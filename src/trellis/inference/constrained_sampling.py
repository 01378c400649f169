"""Samples of the product of a chain and an automaton."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.devices import draw_uniform
from trellis.inference.constrained import Position, Product, draw_kernels
from trellis.transitions.base import invert

LOOKS = 8  # steps after which it is checked on a GPU whether all sequences have ended


class Drawn(NamedTuple):
    """The next token of B sequences; for a sequence that ends, `tokens` and `states` mean nothing."""

    ends: Tensor  # [B] bool
    tokens: Tensor  # [B]
    states: Tensor  # of the chain, which emit the tokens: [B]


def sample(product: Product, position: Position, generator: torch.Generator | None = None) -> list[list[int]]:
    """Sample one continuation per sequence from p(tokens | tokens so far, constraint), without <eos>."""
    number = len(position.steps)
    uniform = draw_uniform((number, product.span.most + 1, 3), product.device, generator)
    uniform = uniform.permute(1, 2, 0)  # drawn by sequence: the first n do not depend on how many are drawn
    if not product.is_narrow(position.steps):
        return while_going(product, position, uniform)
    steps, ended = list[Tensor](), torch.zeros(number, dtype=torch.bool, device=product.device)
    for place, numbers in enumerate(uniform.contiguous()):
        position, ended, tokens = product.replayed(step, position, numbers, ended)
        steps.append(tokens)
        if (place + 1) % LOOKS == 0 and bool(ended.all()):
            break
    rows = torch.stack(steps, 1).tolist()
    return [row[: row.index(-1)] if -1 in row else row for row in rows]


def while_going(product: Product, position: Position, uniform: Tensor) -> list[list[int]]:
    """`sample`, without computing anything for sequences that have ended."""
    found: list[list[int]] = [[] for _ in position.steps]
    active = torch.arange(len(found), device=product.device)
    for numbers in uniform:
        drawn = draw(product, position, numbers[:, active])
        going = ~drawn.ends
        active, position, tokens = active[going], position.some(going), drawn.tokens[going]
        if not len(active):
            break
        for row, token in zip(active.tolist(), tokens.tolist(), strict=True):
            found[row].append(token)
        position = after(product, position, tokens, drawn.states[going])
    return found


def step(product: Product, position: Position, numbers: Tensor, ended: Tensor) -> tuple[Position, Tensor, Tensor]:
    """The positions after one more token, which sequences have ended, and the tokens, -1 where they have."""
    ends, tokens, states = draw(product, position, numbers)
    ended = ended | ends
    return after(product, position, tokens, states), ended, tokens.masked_fill(ended, -1)


def after(product: Product, position: Position, tokens: Tensor, states: Tensor) -> Position:
    """The positions after tokens that these states have emitted."""
    lattice = product.lattice
    return Position(
        product.moves.rows(states), position.steps + 1, lattice.after[position.states, product.emission.classes[tokens]]
    )


def draw(product: Product, position: Position, numbers: Tensor) -> Drawn:
    """Sample the next token from p(token | tokens so far, constraint), by inversion of uniform numbers [3, B].

    States and tokens are sampled together, so this needs no product with the emission matrix."""
    kernels = draw_kernels(position.ahead)
    if kernels and product.is_narrow(position.steps):
        edges, given = product.lattice.side_by_side, (product.sums, product.totals, product.ends)
        drawn = kernels.draw(product.table, position, edges, *given, product.likelihoods.columns, numbers)
        states, choice, tokens = drawn
        return Drawn(choice >= product.totals.shape[0], tokens, states)
    weights, _ = product.before(*position[1:])
    states = invert(position.ahead.double() * weights, numbers[0])
    choice = invert(product.choices(position, states), numbers[1])
    words = product.likelihoods.columns(states) * (product.emission.classes == choice.unsqueeze(-1))
    return Drawn(choice >= product.totals.shape[0], invert(words.double(), numbers[2]), states)
