"""Kernels that run before and after those of dense.py, on the same arrays: the first step, the normalisers, and the
last distributions. dense.py defines the symbols."""

import triton
import triton.language as tl

from trellis.kernels.scan.dense import store_parts


@triton.jit
def first_kernel(priors, weights, joint, sums, out, B, K, NB: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Write j_0, its three parts, and c_0 as one number per block of states."""
    b = tl.program_id(0) + tl.arange(0, 1)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = b.to(tl.int64)[:, None] * K + n[None, :]
    found = tl.load(priors + at) * tl.load(weights + at)
    tl.store(joint + at, found)
    store_parts(found, out, B.to(tl.int64) * K, at)
    tl.store(sums + b * NB + tl.program_id(1), tl.sum(found, 1))


@triton.jit
def inverted(values, TINY: tl.constexpr):
    """1 / values, or zero where a value is below the smallest normal number."""
    return tl.where(values >= TINY, 1.0 / tl.where(values >= TINY, values, 1.0), 0.0)


@triton.jit
def norms_kernel(
    sums, scale, lengths, joint, priors, norm, logs, last, ends, T, B, K,
    NB: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """Write c_t, log c_t (zero in the padding), the last a_t of each sequence (the prior if it has no steps), and its
    last step (-1 if the sequence is impossible)."""
    b = tl.program_id(0)
    length = tl.load(lengths + b)
    lost, final = 0, 0.0
    for first in range(0, T, STEPS):
        t = first + tl.arange(0, STEPS)
        i, inside = t * B + b, t < T
        tiles = sums + i.to(tl.int64)[:, None] * NB + tl.arange(0, NB)[None, :]
        found = tl.sum(tl.load(tiles, mask=inside[:, None], other=0.0), 1)
        possible = found >= TINY
        log = tl.log(tl.where(possible, found, 1.0)) + tl.load(scale + i, mask=inside, other=0.0)
        log = tl.where(t < length, tl.where(possible, log, -float("inf")), 0.0)
        tl.store(norm + i, found, mask=inside)
        tl.store(logs + b * T + t, log, mask=inside)
        lost += tl.sum(((t < length) & (possible == 0)).to(tl.int32), 0)
        final += tl.sum(tl.where(t == length - 1, found, 0.0), 0)
    tl.store(last + b, tl.where(lost > 0, -1, length - 1))
    place = (tl.maximum(length - 1, 0) * B + b).to(tl.int64) * K
    for first in range(0, K, BLOCK):
        n = first + tl.arange(0, BLOCK)
        a = tl.load(joint + place + n, mask=n < K, other=0.0) * inverted(final, TINY)
        prior = tl.load(priors + b.to(tl.int64) * K + n, mask=n < K, other=0.0)
        tl.store(ends + b.to(tl.int64) * K + n, tl.where(length > 0, a, prior), mask=n < K)


@triton.jit
def gains_kernel(
    dots, norm, gain, shares, B, N, NB: tl.constexpr, STEPS: tl.constexpr, TINY: tl.constexpr
):  # fmt: skip
    """Write 1 / d_t and, from the second step on, 1 / (c_{t-1} d_t)."""
    i = tl.program_id(0) * STEPS + tl.arange(0, STEPS)
    tiles = dots + i.to(tl.int64)[:, None] * NB + tl.arange(0, NB)[None, :]
    found = inverted(tl.sum(tl.load(tiles, mask=(i < N)[:, None], other=0.0), 1), TINY)
    tl.store(gain + i, found, mask=i < N)
    before = tl.load(norm + i - B, mask=(i >= B) & (i < N), other=0.0)
    tl.store(shares + i, inverted(before, TINY) * found, mask=i < N)
