"""Small named tuples that travel between the rooms. Shapes: B sequences, T steps, K states, V symbols."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Token ids of B sequences, padded to T; steps at or beyond a sequence's length are ignored."""

    tokens: Tensor  # [B, T] int64; -1 marks a missing observation
    lengths: Tensor  # [B] int64
    fresh: Tensor  # [B] bool: this row begins a new sequence, so any carried state is dropped first
