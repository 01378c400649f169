"""Batches of sequences of similar length, the input of inference."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.emissions import Vectors
from trellis.estimators.inputs import Array, Observations

LARGEST = 1 << 24  # maximum size of one block's posteriors


class Block(NamedTuple):
    """B sequences padded to T steps."""

    observations: Tensor | Vectors  # symbols [B, T], or rows of vectors; -1 where missing
    lengths: Tensor  # [B]
    order: Array  # [n]: source index of each unpadded step
    weights: Tensor | None = None  # [B]; None: all 1
    states: Tensor | None = None  # [B, T]: known states, -1 where unknown; None: all unknown

    def restore(self, steps: Tensor, total: Array) -> None:
        """Scatter per-step values [B, T, ...] back to the original order of the observations."""
        inside = np.arange(steps.shape[1]) < self.lengths.cpu().numpy()[:, None]
        total[self.order] = steps.cpu().numpy()[inside]


def make_blocks(observed: Observations, numbers_per_step: int, device: str) -> list[Block]:
    """Group sequences into blocks, longest first; all sequences of a block are at least half as long as its longest."""
    if len(observed.lengths) == 1:
        return [make_block(observed, np.arange(len(observed.values)), np.array([0]), device)]
    offsets = np.concatenate([[0], np.cumsum(observed.lengths)])
    by_length = np.argsort(-observed.lengths, kind="stable")
    return [
        make_block(observed, ranges(offsets[group], observed.lengths[group]), group, device)
        for group in groups(observed.lengths[by_length], numbers_per_step, by_length)
    ]


def groups(lengths: Array, numbers_per_step: int, names: Array) -> list[Array]:
    """Cut descending lengths into runs of bounded size with little padding; returns the indices of each run."""
    found, begin = [], 0
    while begin < len(lengths):
        longest = int(lengths[begin])
        most = max(1, LARGEST // (longest * numbers_per_step))
        similar = int(np.searchsorted(-lengths, -longest / 2, side="right"))
        end = min(begin + most, max(similar, begin + 1))
        found.append(names[begin:end])
        begin = end
    return found


def ranges(offsets: Array, lengths: Array) -> Array:
    """offset, offset + 1, ... of each sequence, concatenated: [S], [S] -> [n]."""
    steps = np.arange(lengths.max())
    return (offsets[:, None] + steps)[steps < lengths[:, None]]


def make_block(observed: Observations, order: Array, sequences: Array, device: str) -> Block:
    """The block of some sequences [B], whose observations are at `order` [n]."""
    symbols, lengths = observed.values.ndim == 1, observed.lengths[sequences]
    flat = np.where(observed.missing[order], -1, observed.values[order] if symbols else np.arange(len(order)))
    places = torch.from_numpy(padded(flat, lengths)).to(device)
    values = None if symbols else torch.from_numpy(observed.values[order].astype(np.float64)).to(device)
    return Block(
        places if values is None else Vectors(values, places),
        torch.from_numpy(lengths).to(device),
        order if observed.order is None else observed.order[order],
        None if observed.weights is None else torch.from_numpy(observed.weights[sequences]).to(device),
        None if observed.states is None else torch.from_numpy(padded(observed.states[order], lengths)).to(device),
    )


def padded(flat: Array, lengths: Array) -> Array:
    """Sequences in rows, -1 in the padding: [n], [B] -> [B, T]."""
    if len(lengths) == 1:
        return flat[None]
    rows = np.full((len(lengths), lengths.max()), -1, np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = flat
    return rows
