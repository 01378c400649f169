"""Products of gathered matrices on a GPU, without storing the gathered operands."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, DEPTH = 128, 64
PARTS = 4  # partial sums, one program each
WIDE, SUM_DEPTH, SUM_WARPS, SUM_STAGES = 256, 64, 8, 3  # tile parameters of the sum


@triton.jit
def product_kernel(
    left, right, out, rows, columns,
    left_set, left_row, left_inner, right_set, right_inner, right_column, A, B, C,
    GATHER_LEFT: tl.constexpr, GATHER_RIGHT: tl.constexpr, SIDE: tl.constexpr, INNER: tl.constexpr,
    STEPS: tl.constexpr,
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
    place = out + (m * A + i[:, None]) * C + j[None, :]
    tl.store(place, total, mask=(i[:, None] < A) & (j[None, :] < C))


@triton.jit
def members_kernel(index, members, counts, M, SIZE: tl.constexpr):
    """The ordered list of m with this program's index, and their count."""
    i = tl.program_id(0)
    found = 0
    for first in range(0, M, SIZE):
        m = first + tl.arange(0, SIZE)
        hit = (tl.load(index + m, mask=m < M, other=-1) == i).to(tl.int32)
        tl.store(members + i * M + found + tl.cumsum(hit, 0) - 1, m, mask=hit == 1)
        found += tl.sum(hit, 0)
    tl.store(counts + i, found)


@triton.jit
def sum_kernel(
    left, right, out, members, counts, columns,
    left_set, left_row, left_inner, right_set, right_inner, right_column, M, A, B, C,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, STEPS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A partial sum of left[m] right[columns[m]] over the members of an index."""
    g, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for n in range(part, tl.load(counts + g), PARTS):
        m = tl.load(members + g * M + n).to(tl.int64)
        x = left + m * left_set + i[:, None] * left_row
        y = right + tl.load(columns + m) * right_set + j[None, :] * right_column
        for step in range(0, STEPS):
            b = step * INNER + inner
            p = tl.load(x + b[None, :] * left_inner, mask=(i[:, None] < A) & (b[None, :] < B), other=0.0)
            q = tl.load(y + b[:, None] * right_inner, mask=(b[:, None] < B) & (j[None, :] < C), other=0.0)
            total = tl.dot(p.to(q.dtype), q, total, input_precision="ieee")
    place = out + (tl.program_id(0).to(tl.int64) * A + i[:, None]) * C + j[None, :]
    tl.store(place, total, mask=(i[:, None] < A) & (j[None, :] < C))


def summed_product(left: Tensor, right: Tensor, columns: Tensor, index: Tensor, count: int) -> Tensor:
    """out[i] = sum of left[m] right[columns[m]] over all m with index i, in float32:
    [M, a, b], [H, b, c], [M], [M] -> [count, a, c]."""
    (m, a, b), c = left.shape, right.shape[2]
    members = torch.empty(count, m, dtype=torch.int32, device=left.device)
    counts = torch.empty(count, dtype=torch.int32, device=left.device)
    members_kernel[(count,)](index, members, counts, m, SIZE=1024)
    made = torch.empty(count, PARTS, a, c, dtype=torch.float32, device=left.device)
    wide = WIDE if not left.is_cuda or roomy(left.device) else WIDE // 2
    tile = {"ROWS": tile_side(a, TILE), "COLUMNS": tile_side(c, wide), "INNER": SUM_DEPTH, "PARTS": PARTS}
    sum_kernel[(count * PARTS, triton.cdiv(a, tile["ROWS"]), triton.cdiv(c, tile["COLUMNS"]))](
        left, right, made, members, counts, columns, *left.stride(), *right.stride(), m, a, b, c,
        STEPS=triton.cdiv(b, SUM_DEPTH), num_warps=SUM_WARPS, num_stages=SUM_STAGES, **tile,
    )  # fmt: skip
    return made.sum(1)


def roomy(device: torch.device) -> bool:
    """Whether wide tiles fit in shared memory: data-centre Hopper and Blackwell GPUs have 227 KB per program."""
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def tile_side(size: int, most: int) -> int:
    return max(16, min(most, triton.next_power_of_2(size)))


def gathered_product(
    left: Tensor, right: Tensor, rows: Tensor | None, columns: Tensor | None, out: torch.dtype, low: torch.dtype
) -> Tensor:
    """left[rows[m]] right[columns[m]] for every m (None: m itself), multiplied in the precision `low` of `right`:
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
        *left.stride(), *right.stride(), a, b, c,
        rows is not None, columns is not None, side, DEPTH, triton.cdiv(b, DEPTH), num_warps=4,
    )  # fmt: skip
    return made
