"""AdamW and an exponential moving average of the weights in one pass over memory, one kernel for all tensors."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 2048  # entries per program
SMALLEST = 1e-300  # replaces a beta of zero, whose logarithm is needed


class Hyper(NamedTuple):
    """The hyperparameters, which are the same in every step."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


class Rows(NamedTuple):
    """The tensors of all parameters; every list has the same order of parameters."""

    weights: Sequence[Tensor]
    grads: Sequence[Tensor]
    firsts: Sequence[Tensor]  # moving averages of the gradients
    seconds: Sequence[Tensor]  # moving averages of the squared gradients
    steps: Sequence[Tensor]  # [] each: the number of this update
    averages: Sequence[Tensor]  # the weights themselves if there is no average


@triton.jit
def update_some(
    w, g, m, v, a, place, inside, lr, scale, share, bias1, bias2,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, DECAY: tl.constexpr, AVERAGED: tl.constexpr,
):  # fmt: skip
    """Update the entries at `place` that are `inside` (all if None)."""
    grad = tl.load(g + place, mask=inside) / scale
    first = tl.load(m + place, mask=inside)
    first += (1 - BETA1) * (grad - first)
    second = BETA2 * tl.load(v + place, mask=inside) + (1 - BETA2) * grad * grad
    weight = tl.load(w + place, mask=inside) * (1 - lr * DECAY)
    weight -= lr * (first / bias1) / (tl.sqrt(second / bias2) + EPSILON)
    tl.store(m + place, first, mask=inside)
    tl.store(v + place, second, mask=inside)
    tl.store(w + place, weight, mask=inside)
    if AVERAGED:
        average = tl.load(a + place, mask=inside)
        tl.store(a + place, average + share * (weight - average), mask=inside)


@triton.jit
def update_kernel(
    weights, grads, firsts, seconds, steps, averages, sizes, tensors, blocks, rate, scale, share,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, DECAY: tl.constexpr, LOG1: tl.constexpr,
    LOG2: tl.constexpr, COUNT: tl.constexpr, AVERAGED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    which = tl.load(tensors + tl.program_id(0))
    w, g, m, v, n, a, N = weights[0], grads[0], firsts[0], seconds[0], steps[0], averages[0], sizes[0]
    for i in tl.static_range(1, COUNT):
        if which == i:
            w, g, m, v, n, a, N = weights[i], grads[i], firsts[i], seconds[i], steps[i], averages[i], sizes[i]
    step = tl.load(n).to(tl.float64)
    bias1, bias2 = (1 - tl.exp2(step * LOG1)).to(tl.float32), (1 - tl.exp2(step * LOG2)).to(tl.float32)
    lr, divisor, moved = tl.load(rate), tl.load(scale), tl.load(share)
    begin = tl.load(blocks + tl.program_id(0)).to(tl.int64) * SIZE
    place = begin + tl.arange(0, SIZE)
    if begin + SIZE <= N:  # without a mask, 16 bytes at a time
        update_some(
            w, g, m, v, a, place, None, lr, divisor, moved, bias1, bias2, BETA1, BETA2, EPSILON, DECAY, AVERAGED
        )  # fmt: skip
    else:
        update_some(
            w, g, m, v, a, place, place < N, lr, divisor, moved, bias1, bias2, BETA1, BETA2, EPSILON, DECAY, AVERAGED
        )  # fmt: skip


@triton.jit
def average_kernel(weights, averages, sizes, tensors, blocks, share, COUNT: tl.constexpr, SIZE: tl.constexpr):
    which = tl.load(tensors + tl.program_id(0))
    w, a, N = weights[0], averages[0], sizes[0]
    for i in tl.static_range(1, COUNT):
        if which == i:
            w, a, N = weights[i], averages[i], sizes[i]
    place = tl.load(blocks + tl.program_id(0)).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    before = tl.load(a + place, mask=place < N)
    after = before + tl.load(share) * (tl.load(w + place, mask=place < N) - before)
    tl.store(a + place, after, mask=place < N)


def programs(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """For every program, the index of its tensor, and the number of the program among those of that tensor."""
    counts = torch.tensor([triton.cdiv(size, SIZE) for size in sizes])
    tensors = torch.arange(len(sizes)).repeat_interleave(counts)
    blocks = torch.arange(len(tensors)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return tensors.to(device, torch.int32), blocks.to(device, torch.int32)


def update(
    rows: Rows, table: tuple[Tensor, Tensor], rate: Tensor, scale: Tensor, share: Tensor | None, hyper: Hyper
) -> None:
    """One AdamW update of float32 tensors, whose gradients are first divided by scale []. If share [] is given, the
    averages move towards the weights by this fraction. `table` is the result of `programs`."""
    sizes = tuple(weight.numel() for weight in rows.weights)
    logs = (math.log2(max(beta, SMALLEST)) for beta in (hyper.beta1, hyper.beta2))
    update_kernel[(len(table[0]),)](
        *map(tuple, rows), sizes, *table, rate, scale, scale if share is None else share,
        *hyper, *logs, len(sizes), share is not None, SIZE=SIZE, num_warps=4,
    )  # fmt: skip


def average(weights: Sequence[Tensor], averages: Sequence[Tensor], table: tuple[Tensor, Tensor], share: Tensor) -> None:
    """Update the moving averages of weights without gradient: average += share (weight - average). `share` is a
    scalar tensor."""
    sizes = tuple(weight.numel() for weight in weights)
    given = tuple(weights), tuple(averages), sizes, *table, share
    average_kernel[(len(table[0]),)](*given, COUNT=len(sizes), SIZE=SIZE, num_warps=4)
