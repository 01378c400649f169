"""The engine for small problems on a CPU: the NumPy kernels of banded.py, on tensors.

If these kernels cannot solve a problem reliably, homogeneous.py is used instead."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.engines import homogeneous, reference
from trellis.engines.arrays import Array, check, check_rows
from trellis.kernels.scan import banded
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
Arrays = tuple[banded.Sequences, Array, Array, Array]


def fits(prior: Belief, transition: Any, potentials: Potentials, viterbi: bool = False) -> bool:
    """Whether the problem is small: a dense transition, few and short sequences, no gradients."""
    table = potentials.table
    if not (isinstance(transition, Dense) and potentials.ids is None):
        return False
    if not banded.is_small(potentials.rows.shape, transition.num_states, viterbi):
        return False
    if table.device.type != "cpu" or table.dtype not in DTYPES:
        return False
    learned = table.requires_grad or transition.matrix.requires_grad or prior.probs.requires_grad
    return not (learned and torch.is_grad_enabled())


def arrays(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> Arrays:
    """Convert a problem to arrays, and check their shapes and the observed rows."""
    first, matrix, table = (double(tensor) for tensor in (prior.probs, transition.matrix, potentials.table))
    rows, ends = potentials.rows.numpy(), lengths.numpy()
    check(rows.shape, table.shape[1], ends, matrix.shape, first.shape)
    check_rows(len(table), rows, ends)
    return banded.Sequences(rows, ends), first, matrix, table


def double(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float64, copy=False)


class Solution:
    """The results of a `banded.Run` as tensors of the problem's data type."""

    def __init__(self, run: banded.Run, dtype: Any) -> None:
        self.run, self.dtype = run, dtype

    def tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values.astype(self.dtype, copy=False))

    def log_norms(self) -> Tensor:
        return self.tensor(self.run.log_norms())

    def last(self) -> Belief:
        return Belief(self.tensor(self.run.last()))


def solve(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> Solution | None:
    """The solution, or None if it would not be reliable."""
    sequences, *chain = arrays(prior, transition, potentials, lengths)
    run = sequences.solve(*chain)
    return None if run is None else Solution(run, DTYPES[potentials.table.dtype])


def score(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] and the last state distribution."""
    if not (found := solve(prior, transition, potentials, lengths)):
        return homogeneous.score(prior, transition, potentials, lengths)
    return found.log_norms(), found.last()


def filter(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor, Belief]:
    """log p(x_t | x_<t) [B, T], p(z_t | x_<=t) [B, T, K] (zero in the padding) and the last state distribution."""
    if not (found := solve(prior, transition, potentials, lengths)):
        return homogeneous.filter(prior, transition, potentials, lengths)
    return found.log_norms(), found.tensor(found.run.filtered()), found.last()


def smooth(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x) [B, T, K]."""
    if not (found := solve(prior, transition, potentials, lengths)):
        return homogeneous.smooth(prior, transition, potentials, lengths)
    return found.log_norms(), found.tensor(found.run.smoothed())


def expect(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> reference.Expected:
    """The expected statistics of EM."""
    if not (found := solve(prior, transition, potentials, lengths)):
        return homogeneous.expect(prior, transition, potentials, lengths)
    entry, moves, visits = found.run.expected()
    statistics = entry, entry * found.run.prior, moves, visits
    return reference.Expected(found.log_norms(), found.last(), *map(found.tensor, statistics))


def viterbi(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The Viterbi path [B, T] (-1 in the padding) and its log-probability [B]."""
    found = banded.viterbi(*arrays(prior, transition, potentials, lengths))
    if found is None:  # all paths are impossible: return the one that the other engines return
        return homogeneous.viterbi(prior, transition, potentials, lengths)
    path, best = found
    return torch.from_numpy(path), torch.from_numpy(best.astype(DTYPES[potentials.table.dtype], copy=False))


sample = reference.sample
