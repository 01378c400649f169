"""Batches of sequences of similar length, the input of inference."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.emissions import Vectors
from trellis.estimators.inputs import Array, Observations
from trellis.kernels.optional import installed
from trellis.kernels.scan.banded import SHORT, Sequences, is_small

LARGEST = 1 << 24  # maximum size of the posteriors of one block, in numbers
WORTH_COMPILING = 512  # total steps from which the E-step of sequences longer than SHORT is compiled
ONE_THREAD = 200_000  # with up to this many multiplications, a second thread does not make several sequences faster
NARROW = 32  # states up to which the compiled E-step is one function


class Block(NamedTuple):
    """B sequences padded to T steps."""

    observations: Tensor | Vectors  # symbols [B, T], or rows of vectors; -1 where missing
    lengths: Tensor  # [B]
    order: Array  # [n]: the position in X of each step, without the padding
    ends: Array  # [B]: the lengths
    sequences: Callable[[], Sequences] | None = None  # the input of `banded`, if this is a small problem on a CPU
    weights: Tensor | None = None  # [B]; None: all 1
    states: Tensor | None = None  # [B, T]: known states, -1 where unknown; None: all unknown
    steps: Callable[[], Any] | None = None  # for few long sequences on a CPU: returns `fused.Steps`; None without numba

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.ends), int(self.ends.max())

    def restore(self, steps: Array, total: Array) -> None:
        """Scatter per-step values [B, T, ...] back to the original order of the observations."""
        if len(self.ends) == 1:
            total[self.order] = steps[0]
        else:
            total[self.order] = steps[np.arange(steps.shape[1]) < self.ends[:, None]]


def make_blocks(observed: Observations, states: int, numbers_per_step: int, device: str) -> list[Block]:
    """Group sequences into blocks, longest first. In a block, each sequence is at least half as long as the longest
    one."""
    if len(observed.lengths) == 1:
        return [make_block(observed, np.arange(len(observed.values)), np.array([0]), states, device)]
    offsets = np.concatenate([[0], np.cumsum(observed.lengths)])
    by_length = np.argsort(-observed.lengths, kind="stable")
    return [
        make_block(observed, ranges(offsets[group], observed.lengths[group]), group, states, device)
        for group in groups(observed.lengths[by_length], numbers_per_step, by_length)
    ]


def groups(lengths: Array, numbers_per_step: int, names: Array) -> list[Array]:
    """Cut descending lengths into runs of bounded size with little padding; return the `names` in each run."""
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


def make_block(observed: Observations, order: Array, sequences: Array, states: int, device: str) -> Block:
    """The block of some sequences [B], whose observations are at `order` [n]."""
    symbols, lengths = observed.values.ndim == 1, observed.lengths[sequences]
    flat = np.where(observed.missing[order], -1, observed.values[order] if symbols else np.arange(len(order)))
    rows = padded(flat, lengths)
    plain = observed.weights is None and observed.states is None
    plain = plain and device == "cpu"
    small = plain and is_small(rows.shape, states)
    places = tensor(rows, device)
    values = None if symbols else tensor(observed.values[order].T.astype(np.float64, "C"), device).T  # by feature
    return Block(
        places if values is None else Vectors(values, places),
        tensor(lengths, device),
        order if observed.order is None else observed.order[order],
        lengths,
        cache(partial(Sequences, rows, lengths)) if small else None,
        None if observed.weights is None else tensor(observed.weights[sequences], device),
        None if observed.states is None else tensor(padded(observed.states[order], lengths), device),
        cache(partial(fused_steps, rows, lengths)) if plain and is_long(rows.shape, states) else None,
    )


def is_long(shape: tuple[int, ...], states: int) -> bool:
    """Whether sequences of shape [B, T] are few and long, so that one function in one thread is the fastest E-step."""
    batch, longest = shape
    if longest <= SHORT or batch * longest < WORTH_COMPILING or states > NARROW:
        return False
    return batch == 1 or batch * longest * states**2 <= ONE_THREAD


def fused_steps(rows: Array, lengths: Array) -> Any:
    kernels = installed("kernels.scan.fused")
    return kernels and kernels.Steps(rows, lengths)


def padded(flat: Array, lengths: Array) -> Array:
    """Sequences in rows, -1 in the padding: [n], [B] -> [B, T]."""
    if len(lengths) == 1:
        return flat[None]
    rows = np.full((len(lengths), lengths.max()), -1, np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = flat
    return rows


def tensor(values: Array, device: str) -> Tensor:
    found = torch.from_numpy(values)
    return found if device == "cpu" else found.to(device)
