"""The hash of mask/__init__.py on a GPU, in unsigned arithmetic."""

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 1024  # ids per program


@triton.jit
def mixed(value):
    """The hash `mix`, for 32-bit integers."""
    value = (value ^ (value >> 16)) * 0x85EBCA6B
    value = (value ^ (value >> 13)) * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def kept(row_keys, column_keys, threshold):
    """Like `Mask.keeps`, for a tile."""
    total = row_keys.to(tl.uint32)[:, None] + column_keys.to(tl.uint32)[None, :]
    return mixed(total).to(tl.int64) >= threshold


@triton.jit
def keys_kernel(
    step, ids, out, N, SEED: tl.constexpr, PURPOSE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    base = mixed(mixed(tl.load(step).to(tl.uint32) + SEED) + PURPOSE)
    own = tl.load(ids + place, mask=place < N, other=0).to(tl.uint32)
    tl.store(out + place, mixed(base + own * ROWS).to(tl.int64), mask=place < N)


@triton.jit
def choose_kernel(
    step, out, N, KEPT, SEED: tl.constexpr, PURPOSE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """The KEPT of N consecutive ids with the largest keys, ascending."""
    place = tl.arange(0, SIZE)
    base = mixed(mixed(tl.load(step).to(tl.uint32) + SEED) + PURPOSE)
    own = mixed(base + (tl.program_id(0) * N + place).to(tl.uint32) * ROWS)
    order = tl.sort((0xFFFFFFFF - own.to(tl.int64) << 16) + place + tl.where(place < N, 0, 1 << 50))
    chosen = tl.sort(tl.where(place < KEPT, order & 0xFFFF, SIZE))
    tl.store(out + tl.program_id(0) * KEPT + place, tl.program_id(0) * N + chosen, mask=place < KEPT)


def choose(base: int, step: Tensor, purpose: int, classes: int, size: int, kept: int, rows: int) -> Tensor:
    """In each of the classes of `size` consecutive ids, the `kept` ids with the largest `keys`: [classes * kept],
    ascending."""
    out = torch.empty(classes * kept, dtype=torch.int64, device=step.device)
    choices = {"SEED": base, "PURPOSE": purpose, "ROWS": rows, "SIZE": triton.next_power_of_2(size)}
    choose_kernel[(classes,)](step, out, size, kept, **choices)
    return out


def keys(base: int, step: Tensor, purpose: int, ids: Tensor, rows: int) -> Tensor:
    """mix(mix(mix(step + base) + purpose) + ids * rows): [], [n] -> [n]."""
    ids = ids.contiguous()
    out = torch.empty_like(ids)
    grid = (triton.cdiv(len(ids), SIZE),)
    keys_kernel[grid](step, ids, out, len(ids), SEED=base, PURPOSE=purpose, ROWS=rows, SIZE=SIZE)
    return out
