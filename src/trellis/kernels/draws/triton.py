"""Triton: indices are sampled in proportion to weights [B, N] by two kernels. The first one computes the weights, and
their sum in each block of SIZE, both divided by the exp of a number for the block. The second one chooses a block by
its sum, and then an index within the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trellis.kernels.draws import Table

SIZE = 1024  # weights in a block
CELLS = 4096  # entries of likelihoods that a program multiplies at a time


Position = tuple[Tensor, Tensor, Tensor]  # see `constrained.Position`


def kernel(function: Any) -> Any:
    """Compile a kernel once for all sizes and addresses, because a CUDA graph that is captured must not compile."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    plain = [name for name in names if name not in function.__annotations__]
    return triton.jit(do_not_specialize=plain, do_not_specialize_on_alignment=plain)(function)


@triton.jit
def row_after(place, after, step, state, column, T, S, C):
    """The row of the message of the pair to which a token of a class leads."""
    onward = tl.load(after + state * C + column)
    return tl.load(place + tl.minimum(step + 1, T - 1) * S + onward)


@triton.jit
def may_end_at(accepting, step, state, least, most):
    return (tl.load(accepting + state) != 0) & (step >= least) & (step < most)


@triton.jit
def store_block(tops, sums, weights, top):
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(tops + place, top)
    tl.store(sums + place, tl.sum(weights, 0))


@kernel
def sum_kernel(given, classes, chosen, weights, tops, sums, N, MASKED: tl.constexpr, SIZE: tl.constexpr):
    """Weights that are given. With MASKED, those of other classes than the chosen one become zero."""
    row, index = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    weight = tl.load(given + row * N + index, mask=index < N, other=0.0).to(tl.float64)
    if MASKED:
        same = tl.load(classes + index, mask=index < N, other=-1) == tl.load(chosen + row)
        weight = tl.where(same, weight, 0.0)
        tl.store(weights + row * N + index, weight, mask=index < N)
    store_block(tops, sums, weight, 0.0)


@triton.jit
def first_beyond(weights, target, index):
    """The first index whose cumulative weight exceeds the target; never one of weight zero, if another exists."""
    last = tl.max(tl.where(weights > 0, index, 0), 0)
    return tl.min(tl.where((tl.cumsum(weights, 0) > target) & (weights > 0), index, last), 0)


@kernel
def search_kernel(
    weights, tops, sums, uniform, found, N, J, n, by_row, by_draw, none, BLOCKS: tl.constexpr, SIZE: tl.constexpr
):
    """Sample an index; `none` if all weights are zero."""
    program = tl.program_id(0).to(tl.int64)
    row, draw = program // n, program % n
    block = tl.arange(0, BLOCKS)
    least = tl.full([], float("-inf"), tl.float64)
    top = tl.load(tops + row * J + block, mask=block < J, other=least)
    highest = tl.max(top, 0)
    factor = tl.exp(top - tl.where(highest == least, 0.0, highest))
    shares = tl.load(sums + row * J + block, mask=block < J, other=0.0) * factor
    target = tl.load(uniform + row * by_row + draw * by_draw).to(tl.float64) * tl.sum(shares, 0)
    chosen = first_beyond(shares, target, block)
    rest = target - tl.sum(tl.where(block < chosen, shares, 0.0), 0)
    within = tl.arange(0, SIZE)
    index = chosen * SIZE + within
    weight = tl.load(weights + row * N + index, mask=index < N, other=0.0).to(tl.float64)
    divisor = tl.sum(tl.where(block == chosen, factor, 0.0), 0)
    rest /= tl.where(divisor > 0, divisor, 1.0)
    index = chosen * SIZE + first_beyond(weight, rest, within)
    tl.store(found + program, tl.where(tl.sum(shares, 0) > 0, index, none))


@kernel
def proposal_kernel(
    log_probs, alpha, peaks, place, after, accepting, steps, states, classes, weights, tops, sums, V, K, T, S, C,
    least, most, end, SIZE: tl.constexpr,
):  # fmt: skip
    """The weights p(x) M(x)^alpha of tokens, where log M is the largest entry of the message to which they lead."""
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    step, state, inside = tl.load(steps + row), tl.load(states + row), token < V
    never = tl.full([], float("-inf"), tl.float64)
    column = tl.load(classes + token, mask=inside, other=0)
    bound = tl.load(peaks + row_after(place, after, step, state, column, T, S, C))
    may_end = may_end_at(accepting, step, state, least, most)
    bound = tl.where(token == end, tl.where(may_end, 0.0, never), bound)
    log = tl.load(log_probs + row * V + token, mask=inside, other=float("-inf")).to(tl.float64)
    log = tl.where(bound == never, never, log + tl.load(alpha) * tl.where(bound == never, 0.0, bound))
    top = tl.max(log, 0)
    top = tl.where(top == never, 0.0, top)
    weight = tl.exp(log - top)
    tl.store(weights + row * V + token, weight, mask=inside)
    store_block(tops, sums, weight, tl.where(tl.sum(weight, 0) > 0, top, never))


@kernel
def acceptance_kernel(
    proposed, uniform, alpha, ahead, likelihoods, values, scales, peaks, place, after, accepting, steps, states,
    classes, found, K, T, S, C, least, most, end, n, none, DRAWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The first accepted token of each row; `none` if no token is accepted, -1 if none is possible."""
    row, draw = tl.program_id(0).to(tl.int64), tl.arange(0, DRAWS)
    step, state = tl.load(steps + row), tl.load(states + row)
    never = tl.full([], float("-inf"), tl.float64)
    token = tl.load(proposed + row * n + draw, mask=draw < n, other=-1)
    column = tl.load(classes + tl.maximum(token, 0))
    target = row_after(place, after, step, state, column, T, S, C)
    alone, total = tl.zeros([DRAWS], ahead.dtype.element_ty), tl.zeros([DRAWS], ahead.dtype.element_ty)
    for begin in range(0, K, SIZE):
        z = begin + tl.arange(0, SIZE)
        inside = (draw < n)[:, None] & (z < K)[None, :]
        joint = tl.load(likelihoods + (row * n + draw)[:, None] * K + z[None, :], mask=inside, other=0.0)
        joint *= tl.load(ahead + row * K + z, mask=z < K, other=0.0)[None, :]
        alone += tl.sum(joint, 1)
        total += tl.sum(joint * tl.load(values + target[:, None] * K + z[None, :], mask=inside, other=0.0), 1)
    divisor = tl.where(alone > 0, alone, 1.0).to(tl.float64)
    positive = tl.where(total > 0, total, 1.0).to(tl.float64)
    exact = tl.where(total > 0, tl.log(positive) + tl.load(scales + target) - tl.log(divisor), never)
    may_end = may_end_at(accepting, step, state, least, most)
    bound = tl.where(token == end, tl.where(may_end, 0.0, never), tl.load(peaks + target))
    exact = tl.where(token == end, tl.where(may_end, 0.0, never), tl.minimum(exact, 0.0))
    number = tl.load(uniform + row * 2 * n + n + draw, mask=draw < n, other=1.0)
    possible = (token >= 0) & (exact != never) & (bound != never)
    excess = tl.where(possible, exact, 0.0) - tl.where(possible, bound, 0.0)
    accepted = possible & (number < tl.exp(tl.load(alpha) * excess))
    first = tl.min(tl.where(accepted, draw, DRAWS), 0)
    taken = tl.sum(tl.where(draw == first, token, 0), 0)
    taken = tl.where(first < DRAWS, taken, none)
    tl.store(found + row, tl.where(tl.max(token, 0) < 0, -1, taken))


@kernel
def state_kernel(
    ahead, values, scales, sums_of, ending, label, target, place, accepting, steps, states, weights, tops, sums, D, K,
    T, S, C, least, most, SIZE: tl.constexpr,
):  # fmt: skip
    """The weights p(z | tokens so far) b(z) of states, divided by exp of the largest scale of an edge."""
    row, z = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    step, state = tl.load(steps + row), tl.load(states + row)
    never = tl.full([], float("-inf"), tl.float64)
    may_end = may_end_at(accepting, step, state, least, most)
    top = tl.where(may_end, 0.0, never)
    line = place + tl.minimum(step + 1, T - 1) * S
    for edge in range(0, D):
        top = tl.maximum(top, tl.load(scales + tl.load(line + tl.load(target + state * D + edge))))
    shift = tl.where(top == never, 0.0, top)
    total = tl.exp(tl.where(may_end, -shift, never)) * tl.load(ending + z, mask=z < K, other=0.0).to(tl.float64)
    for edge in range(0, D):
        onward = tl.load(line + tl.load(target + state * D + edge))
        weight = tl.load(sums_of + tl.load(label + state * D + edge) * K + z, mask=z < K, other=0.0).to(tl.float64)
        message = tl.load(values + onward * K + z, mask=z < K, other=0.0).to(tl.float64)
        total += weight * message * tl.exp(tl.load(scales + onward) - shift)
    weight = total * tl.load(ahead + row * K + z, mask=z < K, other=0.0).to(tl.float64)
    tl.store(weights + row * K + z, weight, mask=z < K)
    store_block(tops, sums, weight, 0.0)


@kernel
def choice_kernel(
    chosen, values, scales, totals, ending, place, after, accepting, steps, states, weights, tops, sums, K, T, S, C,
    least, most, SIZE: tl.constexpr,
):  # fmt: skip
    """The weights of the classes of the next token, given the state that emits it, and in column C that of the end."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    step, state, z = tl.load(steps + row), tl.load(states + row), tl.load(chosen + row)
    never = tl.full([], float("-inf"), tl.float64)
    may_end = may_end_at(accepting, step, state, least, most)
    onward = row_after(place, after, step, state, tl.minimum(column, C - 1), T, S, C)
    scale = tl.where(column < C, tl.load(scales + onward), tl.where((column == C) & may_end, 0.0, never))
    top = tl.max(scale, 0)
    weight = tl.load(totals + column.to(tl.int64) * K + z, mask=column < C, other=0.0).to(tl.float64)
    weight *= tl.load(values + onward * K + z).to(tl.float64)
    weight = tl.where(column == C, tl.load(ending + z).to(tl.float64), weight)
    weight *= tl.exp(scale - tl.where(top == never, 0.0, top))
    tl.store(weights + row * (C + 1) + column, weight, mask=column <= C)
    store_block(tops, sums, weight, top)


def blocks(weights: Tensor, length: int) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[int, int]]:
    """Memory for weights [B, length] and for the tops and sums of their blocks, and the grid of blocks."""
    grid = len(weights), triton.cdiv(length, SIZE)
    tops, sums = (torch.empty(grid, dtype=torch.float64, device=weights.device) for _ in range(2))
    return torch.empty(len(weights), length, dtype=torch.float64, device=weights.device), (tops, sums), grid


def search(weights: Tensor, parts: tuple[Tensor, Tensor], uniform: Tensor, none: int = 0) -> Tensor:
    """Sample indices from weights whose blocks are known: [B, N], [B, n] -> [B, n]."""
    found, number = torch.empty(uniform.shape, dtype=torch.int64, device=weights.device), parts[0].shape[1]
    sizes = weights.shape[1], number, uniform.shape[1], *uniform.stride(), none
    choices = {"BLOCKS": triton.next_power_of_2(number), "SIZE": SIZE}
    search_kernel[(uniform.numel(),)](weights, *parts, uniform, found, *sizes, **choices)
    return found


def invert(weights: Tensor, uniform: Tensor, classes: Tensor | None = None, chosen: Tensor | None = None) -> Tensor:
    """Sample indices in proportion to weights: [B, N], [B, n] -> [B, n]. If classes [N] are given, only those of the
    chosen class of each row, [B]."""
    given = weights.contiguous()
    kept, parts, grid = blocks(given, given.shape[1])
    masks = (given, given) if classes is None else (classes, chosen)
    sum_kernel[grid](given, *masks, kept, *parts, given.shape[1], MASKED=classes is not None, SIZE=SIZE)
    return search(given if classes is None else kept, parts, uniform)


def propose(
    table: Table, position: Position, log_probs: Tensor, bounds: Tensor, uniform: Tensor, alpha: Tensor
) -> Tensor:
    """Sample tokens in proportion to p(x) M(x)^alpha, where log M(x) is the bound of the row to which x leads: [B, n].
    They are -1 if all weights are zero."""
    weights, parts, grid = blocks(log_probs, log_probs.shape[1])
    given = table.place, table.after, table.accepting, *position[1:], table.classes
    sizes = log_probs.shape[1], *table.sizes, table.end
    proposal_kernel[grid](log_probs.contiguous(), alpha, bounds, *given, weights, *parts, *sizes, SIZE=SIZE)
    return search(weights, parts, uniform, none=-1)


def accept(
    table: Table,
    position: Position,
    proposed: Tensor,
    likelihoods: Tensor,
    bounds: Tensor,
    uniform: Tensor,
    alpha: Tensor,
    none: int,
) -> Tensor:
    """The first accepted token of each row, `none` if no token is accepted, and -1 if none was proposed: [B].
    `likelihoods` are p(x | z) of the proposed tokens: [B n, K]."""
    found = torch.empty(len(proposed), dtype=torch.int64, device=proposed.device)
    ahead, steps, states = position
    given = table.values, table.scales, bounds, table.place, table.after, table.accepting, steps, states, table.classes
    draws, number = triton.next_power_of_2(proposed.shape[1]), proposed.shape[1]
    acceptance_kernel[(len(proposed),)](
        proposed, uniform, alpha, ahead.contiguous(), likelihoods, *given, found, *table.sizes, table.end, number, none,
        DRAWS=draws, SIZE=max(CELLS // draws, 32), num_warps=8,
    )  # fmt: skip
    return found


def draw(
    table: Table,
    position: Position,
    edges: tuple[Tensor, Tensor],
    labels: Tensor,
    totals: Tensor,
    ending: Tensor,
    columns: Callable[[Tensor], Tensor],
    numbers: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The state, the class (C at the end) and the token that follow each position: [B] each. `edges` are the labels and
    targets of the edges of each state of the automaton, [S, D]; `labels` [L, K] and `totals` [C, K] are p(label | z)
    and p(class | z)."""
    (ahead, steps, states), (label, target) = position, edges
    size, width = ahead.shape[1], table.after.shape[1]
    weights, parts, grid = blocks(ahead, size)
    state_kernel[grid](
        ahead.contiguous(), table.values, table.scales, labels, ending, label, target, table.place, table.accepting,
        steps, states, weights, *parts, label.shape[1], *table.sizes, SIZE=SIZE,
    )  # fmt: skip
    chosen = search(weights, parts, numbers[0].unsqueeze(-1)).squeeze(-1)
    weights, parts, grid = blocks(ahead, width + 1)
    choice_kernel[grid](
        chosen, table.values, table.scales, totals, ending, table.place, table.after, table.accepting, steps, states,
        weights, *parts, *table.sizes, SIZE=SIZE,
    )  # fmt: skip
    choice = search(weights, parts, numbers[1].unsqueeze(-1)).squeeze(-1)
    words = invert(columns(chosen), numbers[2].unsqueeze(-1), table.classes, choice)
    return chosen, choice, words.squeeze(-1)
