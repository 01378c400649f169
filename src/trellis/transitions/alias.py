"""Alias tables (Walker 1977): O(1) sampling, regardless of the number of outcomes."""

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_TABLE = 1 << 24  # entries computed at a time


class Alias(NamedTuple):
    """Alias tables of m distributions over n outcomes. In each table, outcome i has a slot, and all slots have the same
    size. A fraction `share` [m, n] of the slot belongs to outcome i, and the rest to the outcome `other` [m, n]."""

    share: Tensor
    other: Tensor

    def draw(self, rows: Tensor, uniform: Tensor) -> Tensor:
        """Sample an outcome from the table of each of these rows: [B], [B] -> [B]."""
        place = uniform.double() * self.share.shape[1]
        slot = place.long().clamp(max=self.share.shape[1] - 1)
        return torch.where(place - slot < self.share[rows, slot], slot, self.other[rows, slot].long())


def alias_tables(weights: Tensor) -> Alias:
    """One alias table per row of weights [m, n], built in O(m n log n) by prefix sums instead of the usual two stacks.

    An outcome with a small weight leaves room in its slot. The excess weight of large outcomes fills this room, in
    order. Prefix sums of room and excess determine which outcome fills which slot (Hübschle-Schneider and Sanders
    2019)."""
    rows = max(1, LARGEST_TABLE // weights.shape[1])
    return Alias(*(torch.cat(parts) for parts in zip(*map(some_tables, weights.split(rows)), strict=True)))


def some_tables(weights: Tensor) -> tuple[Tensor, Tensor]:
    sizes = weights.double()
    total = sizes.sum(-1, keepdim=True)
    sizes = sizes / total.where(total > 0, 1.0) * sizes.shape[1]
    lacking, excess = (1 - sizes).clamp(min=0).cumsum(-1), (sizes - 1).clamp(min=0).cumsum(-1)
    large, end = sizes > 1, sizes.shape[1] - 1
    before = torch.cat([torch.zeros_like(total), lacking[:, :-1]], -1)
    first = large.int().argmax(-1, keepdim=True)
    last = end - large.flip(-1).int().argmax(-1, keepdim=True)
    filling = torch.searchsorted(excess, before).clamp(min=first)
    following = torch.searchsorted(excess, excess, right=True)
    overdrawn = torch.searchsorted(lacking, excess, right=True)  # the slot at which an excess runs out
    left = 1 + excess - lacking.gather(-1, overdrawn.clamp(max=end))
    share = torch.where(large, left.where(overdrawn <= end, 1.0), sizes)
    return share.float(), torch.where(large, following, filling).clamp(max=last).int()
