"""Kernels of the forward and backward passes with all states live, on a GPU: one kernel per step.

Products of float32 numbers run on tensor cores: each number is a sum of three bfloat16 numbers of eight bits, x = x1 +
x2 + x3, and of the nine products of such parts, all but the three smallest are added. The relative error of a product
is below 2^-24. bfloat16 has the same range of exponents as float32. Tensor cores truncate their sums, so the largest
product is added tile by tile and rounded to nearest.

Normalisers are applied one step late, so that no kernel waits for a sum over all states. With o_t the potentials,
    j_t = (j_{t-1} A) o_t / c_{t-1},    c_t = sum_z j_t(z),    a_t = j_t / c_t,
and backwards, with b = 1 at the last step and d_t = sum_z a_t(z) b_t(z), which is 1 except for rounding,
    b_t = (A w_{t+1}) / d_{t+1},    w_t = o_t b_t / c_t,    p(z_t | x) = a_t b_t / d_t = (j_t / o_t) w_t / d_t.
The sums c_t and d_t are stored as one number per tile of states [B, NB]. Arrays over states are padded to whole tiles.
"""

import triton
import triton.language as tl


@triton.jit
def split(x, LOW: tl.constexpr):
    """x as a sum of three numbers of low precision."""
    first = x.to(LOW)
    rest = x - first.to(tl.float32)
    second = rest.to(LOW)
    return first, second, (rest - second.to(tl.float32)).to(LOW)


@triton.jit
def load_parts(place, plane, i, j, stride):
    """The three parts of a tile: [len(i), len(j)] each."""
    at = place + i.to(tl.int64)[:, None] * stride + j[None, :]
    return tl.load(at), tl.load(at + plane), tl.load(at + 2 * plane)


@triton.jit
def store_parts(x, place, plane, at):
    first, second, third = split(x, place.dtype.element_ty)
    tl.store(place + at, first)
    tl.store(place + plane + at, second)
    tl.store(place + 2 * plane + at, third)


@triton.jit
def product(x, matrix, one, b, n, B, K, BK: tl.constexpr, BACK: tl.constexpr):
    """x A, or x A' if BACK, for sequences b and states n: [len(b), len(n)]; `one` is 1."""
    total = tl.zeros((b.shape[0], n.shape[0]), tl.float32)
    low = tl.zeros((b.shape[0], n.shape[0]), tl.float32)
    x_plane, plane = B.to(tl.int64) * K, K.to(tl.int64) * K
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        x1, x2, x3 = load_parts(x, x_plane, b, k, K)
        if BACK:
            a1, a2, a3 = load_parts(matrix, plane, n, k, K)
            a1, a2, a3 = tl.trans(a1), tl.trans(a2), tl.trans(a3)
        else:
            a1, a2, a3 = load_parts(matrix, plane, k, n, K)
        low = tl.dot(x3, a1, low)
        low = tl.dot(x2, a2, low)
        low = tl.dot(x1, a3, low)
        low = tl.dot(x2, a1, low)
        low = tl.dot(x1, a2, low)
        total += tl.dot(x1, a1) * one  # a plain sum would be compiled into the tensor cores' accumulator
    return total + low


@triton.jit
def inverse(sums, b, NB: tl.constexpr, TINY: tl.constexpr):
    """1 / the sum over tiles, or zero if the sum is below the smallest normal number: [len(b)]."""
    total = tl.sum(tl.load(sums + b[:, None] * NB + tl.arange(0, NB)[None, :]), 1)
    return tl.where(total >= TINY, 1.0 / tl.where(total >= TINY, total, 1.0), 0.0)


@triton.jit(do_not_specialize=["B"])
def forward_kernel(
    x, matrix, weights, joint, before, sums, out, one, B, K,
    NB: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """Compute j_t, its parts and c_t from c_{t-1}, o_t and x, the parts of j_{t-1}."""
    b = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    at = b.to(tl.int64)[:, None] * K + n[None, :]
    predicted = product(x, matrix, one, b, n, B, K, BK, False) * inverse(before, b, NB, TINY)[:, None]
    found = predicted * tl.load(weights + at)
    tl.store(joint + at, found)
    store_parts(found, out, B.to(tl.int64) * K, at)
    tl.store(sums + b * NB + tl.program_id(0), tl.sum(found, 1))


@triton.jit(do_not_specialize=["B", "t"])
def backward_kernel(
    x, matrix, weights, joint, norms, after, dots, last, out, one, t, B, K,
    NB: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """Compute w_t (in place of o_t), its parts and d_t from d_{t+1}, c_t, j_t and x, the parts of w_{t+1}."""
    b = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    at = b.to(tl.int64)[:, None] * K + n[None, :]
    message = product(x, matrix, one, b, n, B, K, BK, True) * inverse(after, b, NB, TINY)[:, None]
    message = tl.where((tl.load(last + b) == t)[:, None], 1.0, message)
    scale = inverse(norms, b, NB, TINY)[:, None]
    found = tl.load(weights + at) * message * scale
    tl.store(weights + at, found)
    store_parts(found, out, B.to(tl.int64) * K, at)
    tl.store(dots + b * NB + tl.program_id(0), tl.sum(tl.load(joint + at) * scale * message, 1))


@triton.jit
def split_kernel(x, scale, out, rows, K, padded, ORDER: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    """The parts of x, or of scale[i] x[i], in the given order: [rows, K] -> [parts, padded rows, padded K]."""
    i = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i * K + j, mask=(i < rows) & (j < K), other=0.0)
    if SCALED:
        value *= tl.load(scale + i)
    store_row(value, out, tl.num_programs(0).to(tl.int64) * padded, i * padded + j, j < padded, ORDER)


@triton.jit
def store_row(value, out, plane, at, inside, ORDER: tl.constexpr):
    """Store the parts of numbers in the given order."""
    first, second, third = split(value, out.dtype.element_ty)
    for place in tl.static_range(len(ORDER)):
        part = first if ORDER[place] == 1 else second if ORDER[place] == 2 else third
        tl.store(out + place * plane + at, part, mask=inside)


@triton.jit
def pairs_kernel(
    joint, pulls, shares, out, one, steps, count, K, LOW: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sums of share_i j_i' w_i over consecutive groups of `count` steps i: [steps, K], [steps, K] -> [groups, K, K]."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total, low = tl.zeros((BLOCK, BLOCK), tl.float32), tl.zeros((BLOCK, BLOCK), tl.float32)
    begin = tl.program_id(2) * count
    for first in range(begin, tl.minimum(begin + count, steps), ROWS):
        i = first + tl.arange(0, ROWS)
        at, inside = i[:, None].to(tl.int64) * K, (i < steps)[:, None]
        left = tl.load(joint + at + x[None, :], mask=inside, other=0.0)
        right = tl.load(pulls + at + y[None, :], mask=inside, other=0.0)
        right *= tl.load(shares + i, mask=i < steps, other=0.0)[:, None]
        a1, a2, a3 = split(tl.trans(left), LOW)
        b1, b2, b3 = split(right, LOW)
        low = tl.dot(a3, b1, low)
        low = tl.dot(a2, b2, low)
        low = tl.dot(a1, b3, low)
        low = tl.dot(a2, b1, low)
        low = tl.dot(a1, b2, low)
        total += tl.dot(a1, b1) * one  # as in `product`
    place = (tl.program_id(2) * K + x[:, None]).to(tl.int64) * K + y[None, :]
    tl.store(out + place, total + low)


@triton.jit
def exponentials(table, row, n, top, K):
    """exp(table[row] - top) at the states n, one if there is no row, zero beyond K."""
    logs = tl.load(table + row.to(tl.int64) * K + n, mask=(n < K) & (row >= 0), other=0.0)
    return tl.where(n < K, tl.exp(logs - top), 0.0)


@triton.jit(do_not_specialize=["B", "T"])
def load_kernel(
    prior, stride, matrix, table, rows, lengths, priors, parts, weights, scale, keys, inside,
    B, T, K, steps, padded, padded_batch, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a padded problem: the parts of the matrix, the prior, o_t scaled to a maximum of 1, the logarithm of the
    scale, the row of each step (-1: none), and the lengths."""
    i = tl.program_id(0).to(tl.int64)
    if i < padded:
        for first in range(0, padded, BLOCK):
            n = first + tl.arange(0, BLOCK)
            value = tl.load(matrix + i * K + n, mask=(i < K) & (n < K), other=0.0)
            store_row(value, parts, padded.to(tl.int64) * padded, i * padded + n, n < padded, (1, 2, 3))
    if i < steps * padded_batch:
        load_step(
            i, prior, stride, table, rows, lengths, priors, weights, scale, keys, inside,
            B, T, K, padded, padded_batch, BLOCK,
        )  # fmt: skip


@triton.jit
def load_step(
    i, prior, stride, table, rows, lengths, priors, weights, scale, keys, inside, B, T, K, padded, padded_batch,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """What `load_kernel` writes for one step of one sequence."""
    t, b = i // padded_batch, i % padded_batch
    length = tl.load(lengths + b, mask=b < B, other=0)
    row = tl.load(rows + b * T + t, mask=t < length, other=-1)
    tl.store(keys + i, row.to(tl.int32))
    top = tl.full((), -float("inf"), tl.float32)
    for first in range(0, K, BLOCK):
        n = first + tl.arange(0, BLOCK)
        logs = tl.load(table + row * K + n, mask=(n < K) & (row >= 0), other=-float("inf"))
        top = tl.maximum(top, tl.max(logs, 0))
    top = tl.where(top == -float("inf"), 0.0, top)
    tl.store(scale + i, top)
    for first in range(0, padded, BLOCK):
        n = first + tl.arange(0, BLOCK)
        tl.store(weights + i * padded + n, exponentials(table, row, n, top, K), mask=n < padded)
    if t == 0:
        tl.store(inside + b, length.to(tl.int32))
        for first in range(0, padded, BLOCK):
            n = first + tl.arange(0, BLOCK)
            begin = tl.load(prior + b * stride + n, mask=(b < B) & (n < K), other=0.0)
            tl.store(priors + b * padded + n, begin, mask=n < padded)


@triton.jit
def posterior_of(joint, pulls, at, inside, weight, TINY: tl.constexpr):
    """(j / o) w, or zero where o is zero."""
    j, w = tl.load(joint + at, mask=inside, other=0.0), tl.load(pulls + at, mask=inside, other=0.0)
    return tl.where(weight >= TINY, j / tl.where(weight >= TINY, weight, 1.0), 0.0) * w


@triton.jit(do_not_specialize=["B", "T"])
def smooth_kernel(
    joint, pulls, gain, scale, keys, table, lengths, out, B, T, K, padded, padded_batch,
    BLOCK: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """p(z_t | x) [B, T, K], zero in the padding; `gain` is 1 / d_t."""
    i = tl.program_id(0).to(tl.int64)
    b, t = i // T, i % T
    place = t * padded_batch + b
    inside = t < tl.load(lengths + b)
    row, top, factor = tl.load(keys + place), tl.load(scale + place), tl.load(gain + place)
    for first in range(0, K, BLOCK):
        n = first + tl.arange(0, BLOCK)
        weight = exponentials(table, row, n, top, K)
        found = posterior_of(joint, pulls, place * padded + n, n < K, weight, TINY) * factor
        tl.store(out + i * K + n, tl.where(inside, found, 0.0), mask=n < K)


@triton.jit(do_not_specialize=["steps"])
def visits_kernel(
    joint, pulls, gain, scale, table, keys, order, out, steps, K, padded,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """The sum of the posteriors of all steps that observe the same row of the table. keys[i] is the i-th smallest row
    index, and step order[i] observes this row. The program of the first of several equal keys adds up all of them."""
    begin = tl.program_id(0)
    row = tl.load(keys + begin)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if (row >= 0) & (row != tl.load(keys + begin - 1, mask=begin > 0, other=-1)):
        weight = exponentials(table, row, n, tl.load(scale + tl.load(order + begin)), K)[None, :]
        total = tl.zeros((BLOCK,), tl.float32)
        first = begin
        while first < steps:
            i = first + tl.arange(0, ROWS)
            same = tl.load(keys + i, mask=i < steps, other=-1) == row
            step = tl.load(order + i, mask=same, other=0)
            factor = tl.load(gain + step, mask=same, other=0.0)
            at = step[:, None] * padded + n[None, :]
            found = posterior_of(joint, pulls, at, same[:, None] & (n < K)[None, :], weight, TINY)
            total += tl.sum(found * factor[:, None], 0)
            first = tl.where(tl.sum(same.to(tl.int32), 0) == ROWS, first + ROWS, steps)
        tl.store(out + row.to(tl.int64) * K + n, total, mask=n < K)
