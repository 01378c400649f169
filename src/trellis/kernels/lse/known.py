"""Row normalisers on a GPU, if each of R rows belongs to a state, and the normalisers of some states are known.

Every other normaliser is computed once, even if several rows belong to its state. A table over all states holds R + i
for the state of the i-th known normaliser. For any other state, it holds the number of one of the rows of the state, or
-1 if the state has no rows. Rows whose number is in the table are listed, and their normalisers are computed."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trellis.kernels.lse.triton import in_parts

PROGRAMS = 768  # only some of them have rows to compute
SIZE = 256  # rows per program
LISTED = 4096  # rows that `list_kernel` reads at a time


@triton.jit
def mark_kernel(table, names, ids, R, K, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.atomic_max(table + tl.load(names + i, mask=i < R, other=0), i, mask=i < R)
    tl.atomic_max(table + tl.load(ids + i, mask=i < K, other=0), R + i, mask=i < K)


@triton.jit
def list_kernel(table, names, listed, slots, count, R, SIZE: tl.constexpr):
    """List the rows whose number is in the table, in order; also write the position of each row in the list, and the
    length of the list."""
    found = 0
    for first in range(0, R, SIZE):
        i = first + tl.arange(0, SIZE)
        state = tl.load(names + i, mask=i < R, other=0)
        own = (tl.load(table + state, mask=i < R, other=-1) == i).to(tl.int32)
        slot = found + tl.cumsum(own, 0) - 1
        tl.store(listed + slot, i, mask=own == 1)
        tl.store(slots + i, slot, mask=own == 1)
        found += tl.sum(own, 0)
    tl.store(count, found)


@triton.jit
def spread_kernel(parts, known, table, names, slots, out, R, PARTS, SIZE: tl.constexpr):
    """The normaliser of every row: the known one, or the logsumexp over the parts that were computed for the row of the
    same state in the table."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    place = tl.load(table + tl.load(names + i, mask=i < R, other=0), mask=i < R, other=0)
    new = (i < R) & (place < R)
    slot = tl.load(slots + place, mask=new, other=0)
    top = tl.full((SIZE,), -float("inf"), tl.float32)
    for part in range(0, PARTS):
        top = tl.maximum(top, tl.load(parts + part * R + slot, mask=new, other=0.0))
    shift = tl.where(top == -float("inf"), 0.0, top)
    total = tl.zeros((SIZE,), tl.float32)
    for part in range(0, PARTS):
        total += tl.exp(tl.load(parts + part * R + slot, mask=new, other=0.0) - shift)
    old = tl.load(known + place - R, mask=(i < R) & (place >= R), other=0.0)
    tl.store(out + i, tl.where(new, shift + tl.log(total), old), mask=i < R)


def logsumexp(q: Tensor, k: Tensor, names: Tensor, ids: Tensor, known: Tensor, states: int) -> Tensor:
    """The normalisers of the rows q [R, d], which belong to the states `names` [R], over the keys k. The normalisers
    `known` [K] of the states `ids` [K] are given, in ascending order of the states."""
    rows, out = len(q), torch.empty(len(q), dtype=torch.float32, device=q.device)
    table = torch.full((states,), -1, dtype=torch.int32, device=q.device)
    listed, slots, count = (torch.empty(n, dtype=torch.int32, device=q.device) for n in (rows, rows, 1))
    mark_kernel[(triton.cdiv(max(rows, len(ids)), SIZE),)](table, names, ids, rows, len(ids), SIZE=SIZE)
    list_kernel[(1,)](table, names, listed, slots, count, rows, SIZE=LISTED, num_warps=16)
    parts = in_parts(q, k, PROGRAMS, None, q.new_empty(0), (listed, count))
    grid = (triton.cdiv(rows, SIZE),)
    spread_kernel[grid](parts, known, table, names, slots, out, rows, len(parts), SIZE=SIZE)
    return out
