"""Products of pairs of matrices that are selected by index, on a GPU, without copying the matrices."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, DEPTH = 128, 64
CHUNK = 16  # products that a program sums
CHUNK_SIZE = 4096  # entries of partial sums that a program adds
WIDE, SUM_DEPTH, SUM = 256, 64, {"num_warps": 8, "num_stages": 4}  # tiles and schedule of the sum


@triton.jit
def product_kernel(
    left, right, out, rows, columns, norms,
    left_set, left_row, left_inner, right_set, right_inner, right_column, A, B, C,
    GATHER_LEFT: tl.constexpr, GATHER_RIGHT: tl.constexpr, NORMED: tl.constexpr, SIDE: tl.constexpr,
    INNER: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    j = tl.program_id(2) * SIDE + tl.arange(0, SIDE)
    inner = tl.arange(0, INNER)
    first = tl.load(rows + m) if GATHER_LEFT else m
    second = tl.load(columns + m) if GATHER_RIGHT else m
    x = left + first * left_set + i[:, None] * left_row
    y = right + second * right_set + j[None, :] * right_column
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for step in range(0, STEPS):
        b = step * INNER + inner
        p = tl.load(x + b[None, :] * left_inner, mask=(i[:, None] < A) & (b[None, :] < B), other=0.0)
        q = tl.load(y + b[:, None] * right_inner, mask=(b[:, None] < B) & (j[None, :] < C), other=0.0)
        total = tl.dot(p.to(q.dtype), q, total, input_precision="ieee")
    if NORMED:
        total = tl.exp(total - tl.load(norms + first * A + i, mask=i < A, other=0.0)[:, None])
    place = out + (m * A + i[:, None]) * C + j[None, :]
    tl.store(place, total, mask=(i[:, None] < A) & (j[None, :] < C))


@triton.jit
def members_kernel(index, members, counts, M, SIZE: tl.constexpr):
    """List, in order, all m for which index[m] is the number of this program, and count them."""
    i = tl.program_id(0)
    found = 0
    for first in range(0, M, SIZE):
        m = first + tl.arange(0, SIZE)
        hit = (tl.load(index + m, mask=m < M, other=-1) == i).to(tl.int32)
        tl.store(members + i * M + found + tl.cumsum(hit, 0) - 1, m, mask=hit == 1)
        found += tl.sum(hit, 0)
    tl.store(counts + i, found)


@triton.jit
def weigh_kernel(blocks, left, right, out, span, A, B, SIDE: tl.constexpr):
    """Multiply entry (i, j) of block m by left[m, i] right[m, j]."""
    m = tl.program_id(0).to(tl.int64)
    place = m + m // span  # each sequence has one step more than blocks
    i = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    j = tl.program_id(2) * SIDE + tl.arange(0, SIDE)
    at, inside = (m * A + i[:, None]) * B + j[None, :], (i[:, None] < A) & (j[None, :] < B)
    by_row = tl.load(left + place * A + i, mask=i < A, other=0.0)
    by_column = tl.load(right + place * B + j, mask=j < B, other=0.0)
    x = tl.load(blocks + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, x * by_row[:, None] * by_column[None, :], mask=inside)


def weighted(blocks: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Multiply entry (i, j) of the block of sequence s and step t by left[s, t, i] right[s, t, j].

    Blocks are [B (T-1), a, b], and vectors are [B, T, a] and [B, T, b]; the last step of the vectors is not used."""
    (m, a, b), out = blocks.shape, torch.empty_like(blocks)
    if m:
        side = tile_side(max(a, b), TILE)
        grid = m, triton.cdiv(a, side), triton.cdiv(b, side)
        weigh_kernel[grid](blocks, left, right, out, m // len(left), a, b, SIDE=side, num_warps=8)
    return out


@triton.jit
def sum_kernel(
    left, right, parts, members, counts, columns,
    left_set, left_row, left_inner, right_set, right_inner, right_column, M, A, B, C, G,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, STEPS: tl.constexpr, CHUNK: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """The sum of left[m] right[columns[m]] over a chunk of all m with the same index[m]."""
    chunk = tl.program_id(0)
    groups = tl.arange(0, GROUPS)
    chunks = (tl.load(counts + groups, mask=groups < G, other=0) + CHUNK - 1) // CHUNK
    g = tl.sum((tl.cumsum(chunks, 0) <= chunk).to(tl.int32), 0)
    if g < G:
        begin = (chunk - tl.sum(tl.where(groups < g, chunks, 0), 0)) * CHUNK
        number = tl.minimum(CHUNK, tl.load(counts + g) - begin)
        turn = tl.arange(0, CHUNK)
        own = tl.load(members + g.to(tl.int64) * M + begin + turn, mask=turn < number, other=0)
        theirs = tl.load(columns + own)
        i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        inner = tl.arange(0, INNER)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in range(0, number * STEPS):
            here = turn == step // STEPS
            x = left + tl.sum(tl.where(here, own, 0), 0).to(tl.int64) * left_set + i[:, None] * left_row
            y = right + tl.sum(tl.where(here, theirs, 0), 0) * right_set + j[None, :] * right_column
            b = step % STEPS * INNER + inner
            p = tl.load(x + b[None, :] * left_inner, mask=(i[:, None] < A) & (b[None, :] < B), other=0.0)
            q = tl.load(y + b[:, None] * right_inner, mask=(b[:, None] < B) & (j[None, :] < C), other=0.0)
            total = tl.dot(p.to(q.dtype), q, total, input_precision="ieee")
        place = parts + chunk.to(tl.int64) * A * C
        tl.store(place + i[:, None] * C + j[None, :], total, mask=(i[:, None] < A) & (j[None, :] < C))


@triton.jit
def chunks_kernel(parts, counts, out, G, N, CHUNK: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr):
    """Add up the chunks of each index."""
    g = tl.program_id(0)
    groups = tl.arange(0, GROUPS)
    chunks = (tl.load(counts + groups, mask=groups < G, other=0) + CHUNK - 1) // CHUNK
    begin = tl.sum(tl.where(groups < g, chunks, 0), 0).to(tl.int64)
    end = begin + tl.sum(tl.where(groups == g, chunks, 0), 0)
    n = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), tl.float32)
    for chunk in range(begin, end):
        total += tl.load(parts + chunk * N + n, mask=n < N, other=0.0)
    tl.store(out + g.to(tl.int64) * N + n, total, mask=n < N)


def summed_product(
    left: Tensor, right: Tensor, columns: Tensor, index: Tensor, count: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """out[i] = sum of left[m] right[columns[m]] over all m with index[m] = i, accumulated in float32:
    [M, a, b], [H, b, c], [M], [M] -> [count, a, c]."""
    (m, a, b), c, device = left.shape, right.shape[2], left.device
    members = torch.empty(count, m, dtype=torch.int32, device=device)
    counts = torch.empty(count, dtype=torch.int32, device=device)
    members_kernel[(count,)](index, members, counts, m, SIZE=1024)
    parts = torch.empty(triton.cdiv(m, CHUNK) + count, a, c, dtype=torch.float32, device=device)
    wide = WIDE if not left.is_cuda or roomy(device) else WIDE // 2
    tile = {"ROWS": tile_side(a, TILE), "COLUMNS": tile_side(c, wide), "INNER": tile_side(b, SUM_DEPTH)}
    chunked = {"CHUNK": CHUNK, "GROUPS": triton.next_power_of_2(count)}
    sum_kernel[(len(parts), triton.cdiv(a, tile["ROWS"]), triton.cdiv(c, tile["COLUMNS"]))](
        left, right, parts, members, counts, columns, *left.stride(), *right.stride(), m, a, b, c, count,
        STEPS=triton.cdiv(b, tile["INNER"]), **tile, **chunked, **SUM,
    )  # fmt: skip
    out = torch.empty(count, a, c, dtype=dtype, device=device)
    grid = count, triton.cdiv(a * c, CHUNK_SIZE)
    chunks_kernel[grid](parts, counts, out, count, a * c, SIZE=CHUNK_SIZE, **chunked)
    return out


def roomy(device: torch.device) -> bool:
    """Whether wide tiles fit in shared memory: data-centre Hopper and Blackwell GPUs have 227 KB per program."""
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def tile_side(size: int, most: int) -> int:
    return max(16, min(most, triton.next_power_of_2(size)))


def gathered_product(
    left: Tensor, right: Tensor, rows: Tensor | None, columns: Tensor | None, out: torch.dtype, low: torch.dtype,
    norms: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x_m = left[rows[m]] right[columns[m]] for every m (if `rows` or `columns` is None, the index is m),
    multiplied in the precision `low` of `right`. With norms n [G, a], the result is exp(x_m - n[rows[m]]):
    [G, a, b], [H, b, c], [M], [M] -> [M, a, c]."""
    index = rows if rows is not None else columns
    count = len(left) if index is None else len(index)
    (_, a, b), c = left.shape, right.shape[2]
    side = tile_side(max(a, c), TILE)
    made = torch.empty(count, a, c, dtype=out, device=left.device)
    if not count:
        return made
    product_kernel[(count, triton.cdiv(a, side), triton.cdiv(c, side))](
        left, right.to(low), made, made if rows is None else rows, made if columns is None else columns,
        made if norms is None else norms, *left.stride(), *right.stride(), a, b, c,
        rows is not None, columns is not None, norms is not None, side, DEPTH, triton.cdiv(b, DEPTH), num_warps=4,
    )  # fmt: skip
    return made
