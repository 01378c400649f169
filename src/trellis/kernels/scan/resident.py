"""Forward and adjoint recursions over blocks of probabilities [B, T-1, k, k] on a GPU, for a block that fits in the
registers of one program: one program per sequence scans over time, and loads the next block while it multiplies the
current one.

The recursions are those of engines/reference.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 256  # states of a block


def fits(states: int) -> bool:
    return states <= LARGEST


@triton.jit
def load_block(blocks, index, wanted, K: tl.constexpr, WIDTH: tl.constexpr):
    """Block `index`, or zeros if `wanted` is false: [WIDTH, WIDTH]."""
    rows, columns = tl.arange(0, WIDTH)[:, None], tl.arange(0, WIDTH)[None, :]
    inside = wanted & (rows < K) & (columns < K)
    return tl.load(blocks + (index * K + rows) * K + columns, mask=inside, other=0.0)


@triton.jit
def forward_kernel(
    prior, blocks, weights, lengths, alphas, norms, last, T,
    K: tl.constexpr, WIDTH: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    states = tl.arange(0, WIDTH)
    inside = states < K
    length = tl.load(lengths + b)
    predicted = tl.load(prior + b * K + states, mask=inside, other=0.0)
    a = predicted
    weight = tl.load(weights + b * T * K + states, mask=inside & (length > 0), other=-float("inf"))
    ahead = load_block(blocks, b * (T - 1), length > 1, K, WIDTH)
    for t in range(0, length):
        p, here = ahead, b * T + t
        ahead = load_block(blocks, b * (T - 1) + t + 1, t + 2 < length, K, WIDTH)
        following = tl.load(weights + (here + 1) * K + states, mask=inside & (t + 1 < length), other=-float("inf"))
        top = tl.max(weight, 0)
        top = tl.where(top == -float("inf"), 0.0, top)
        joint = predicted * tl.exp(weight - top)
        norm = tl.sum(joint, 0)
        possible = norm >= TINY
        a = tl.where(possible, joint / tl.where(possible, norm, 1.0), 0.0)
        tl.store(alphas + here * K + states, a, mask=inside)
        tl.store(norms + here, tl.where(possible, tl.log(tl.where(possible, norm, 1.0)) + top, -float("inf")))
        predicted = tl.sum(a[:, None] * p.to(tl.float32), 0)
        weight = following
    tl.store(last + b * K + states, a, mask=inside)


@triton.jit
def adjoint_kernel(
    blocks, weights, lengths, alphas, norms, grads, last, d_prior, d_weights, pulls, leaving, T,
    K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    states = tl.arange(0, WIDTH)
    inside = states < K
    length = tl.load(lengths + b)
    message = tl.load(last + b * K + states, mask=inside, other=0.0)
    pull = message
    ahead = load_block(blocks, b * (T - 1) + length - 2, length > 1, K, WIDTH)
    here = b * T + length - 1
    a = tl.load(alphas + here * K + states, mask=inside & (length > 0), other=0.0)
    weight = tl.load(weights + here * K + states, mask=inside & (length > 0), other=-float("inf"))
    for back in range(0, length):
        p, t = ahead, length - 1 - back
        here = b * T + t
        ahead = load_block(blocks, b * (T - 1) + t - 2, t > 1, K, WIDTH)
        before = tl.load(alphas + (here - 1) * K + states, mask=inside & (t > 0), other=0.0)
        following = tl.load(weights + (here - 1) * K + states, mask=inside & (t > 0), other=-float("inf"))
        norm = tl.load(norms + here)
        future = tl.load(grads + here) + message - tl.sum(message * a, 0)
        tl.store(d_weights + here * K + states, a * future, mask=inside)
        possible = norm > -float("inf")
        gain = tl.where(possible, tl.exp(weight - tl.where(possible, norm, 0.0)), 0.0)
        pull = tl.where(inside, gain * future, 0.0)
        tl.store(pulls + here * K + states, pull, mask=inside)
        message = tl.sum(p.to(tl.float32) * pull[None, :], 1)
        tl.store(leaving + (here - 1) * K + states, before * message, mask=inside & (t > 0))
        a, weight = before, following
    tl.store(d_prior + b * K + states, pull, mask=inside)


def schedule(states: int) -> dict[str, int]:
    width = max(16, triton.next_power_of_2(states))
    return {"K": states, "WIDTH": width, "num_warps": max(1, width**2 >> 12), "num_stages": 1}


def forward(prior: Tensor, blocks: Tensor, weights: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x_<=t) [B, T, k], zero in the padding, and the last state distribution
    [B, k], which is the prior for an empty sequence."""
    alphas, last = torch.zeros_like(weights), torch.empty_like(prior)
    norms = alphas.new_zeros(alphas.shape[:2])
    sizes = {"T": weights.shape[1], **schedule(weights.shape[2]), "TINY": torch.finfo(alphas.dtype).tiny}
    forward_kernel[(len(alphas),)](prior, blocks, weights, lengths, alphas, norms, last, **sizes)
    return norms, alphas, last


def adjoint(
    blocks: Tensor, weights: Tensor, lengths: Tensor, norms: Tensor, alphas: Tensor, grads: Tensor, last: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The backward recursion of engines/reference.py, which defines the symbols: dL/dprior [B, k], dL/dlog o [B, T, k],
    w_t [B, T, k] and the elementwise product of a_t and A w_{t+1} [B, T, k] (zero at the last step), given dL/dlog c
    [B, T] and dL/d(last a_t) [B, k]."""
    d_prior, (d_weights, pulls, leaving) = torch.empty_like(last), weights.new_zeros(3, *weights.shape)
    sizes = {"T": weights.shape[1], **schedule(weights.shape[2])}
    given = blocks, weights, lengths, alphas, norms, grads, last
    adjoint_kernel[(len(alphas),)](*given, d_prior, d_weights, pulls, leaving, **sizes)
    return d_prior, d_weights, pulls, leaving
