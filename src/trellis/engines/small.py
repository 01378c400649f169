"""The engine for small problems on a CPU: NumPy and BLAS, where compiling or loading a kernel would not pay.

With M_t(z, z') = A(z, z') o_t(z') and o_t scaled to a maximum of one, f_t = f_{t-1} M_t and b_{t-1} = M_t b_t are
solutions of a block-bidiagonal system and of its transpose: (I - M) f = (f_0, 0, ...). Its matrix is triangular and
banded, so BLAS runs each recursion in one call (dtbsv), for all sequences. A sequence is cut into pieces of at most
PIECE steps, and f_t is normalised where a piece begins; s_t = sum_z f_t(z). A problem with an s_t too small for that is
left to homogeneous.py. Arrays are [pieces, B, steps, K], in float64.
"""

from functools import cached_property
from itertools import accumulate
from operator import add
from typing import Any

import numpy as np
import torch
from scipy.linalg.blas import dtbsv
from torch import Tensor

from trellis.engines import homogeneous, reference
from trellis.engines.arrays import Array, check, check_rows, log
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

STEPS, SHORT = 384, 64  # maximum length of a sequence; of a short one, and for Viterbi
NUMBERS, SHORT_NUMBERS = 1 << 12, 1 << 15  # maximum entries of all M_t; if all sequences are short
PIECE = 128  # steps without normalisation
SMALLEST = 1e-200  # below this s_t, parts of it may have underflowed
FEW = 32  # entries of a step's M_t for which lists are faster than arrays
LOWEST = np.finfo(np.float64).min
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


def fits(prior: Belief, transition: Any, potentials: Potentials, viterbi: bool = False) -> bool:
    """Whether the problem is small: a dense transition, few and short sequences, no gradients.

    Only sizes matter, not whether kernels are compiled already: the same data always take the same path."""
    table, (batch, longest) = potentials.table, potentials.rows.shape
    most = min(SHORT, STEPS) if viterbi else STEPS
    if not (isinstance(transition, Dense) and potentials.ids is None and 0 < longest <= most and batch > 0):
        return False
    numbers = batch * longest * transition.num_states**2
    if numbers > (SHORT_NUMBERS if longest <= SHORT else NUMBERS):
        return False
    if table.device.type != "cpu" or table.dtype not in DTYPES:
        return False
    learned = table.requires_grad or transition.matrix.requires_grad or prior.probs.requires_grad
    return not (learned and torch.is_grad_enabled())


class Problem:
    """A problem as arrays, checked."""

    def __init__(self, prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> None:
        self.prior, self.matrix = double(prior.probs), double(transition.matrix)
        table, rows, ends = double(potentials.table), potentials.rows.numpy(), lengths.numpy()
        check(rows.shape, table.shape[1], ends, self.matrix.shape, self.prior.shape)
        check_rows(len(table), rows, ends)
        (batch, self.steps), self.symbols, self.dtype = rows.shape, len(table), DTYPES[potentials.table.dtype]
        pieces = -(-self.steps // PIECE)
        size = -(-self.steps // pieces)
        outside = None
        if ends.min() < pieces * size:
            outside = np.arange(pieces * size) >= ends[:, None]
            rows = np.where(outside, -1, np.pad(rows, ((0, 0), (0, pieces * size - self.steps))))
            outside = outside.reshape(batch, pieces, size).swapaxes(0, 1)
        self.outside = outside  # [pieces, B, steps] bool, if there is any padding
        self.rows = rows.reshape(batch, pieces, size).swapaxes(0, 1)
        self.missing = self.rows < 0 if self.rows.min() < 0 else None
        self.table, self.places = table, self.rows
        if len(table) > rows.size:
            self.table = table.take(self.rows.ravel(), 0, mode="clip")
            self.places = np.arange(rows.size).reshape(self.rows.shape)

    def at_steps(self, table: Array, missing: float) -> Array:
        """The table's rows at every step: [pieces, B, steps, ...]."""
        values = table.take(self.places, 0, mode="clip")
        if self.missing is not None:
            values[self.missing] = missing
        return values

    def clear_padding(self, values: Array) -> Array:
        if self.outside is not None:
            values[self.outside] = 0
        return values

    def tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values.astype(self.dtype, copy=False))

    def output(self, values: Array) -> Tensor:
        """[pieces, B, steps, ...] as a tensor [B, T, ...], zero in the padding."""
        pieces, batch, size, *others = self.clear_padding(values).shape
        return self.tensor(values.swapaxes(0, 1).reshape(batch, pieces * size, *others)[:, : self.steps])


class Run(Problem):
    """The forward and backward passes of one problem."""

    def __init__(self, *problem: Any) -> None:
        super().__init__(*problem)
        scale = np.maximum(self.table.max(-1), LOWEST)
        self.scale = self.at_steps(scale, 0)
        self.weights = self.at_steps(np.exp(self.table - scale[:, None]), 1)  # [pieces, B, steps, K]
        self.band = self.system()
        self.forward()
        self.reliable = self.totals.min() >= SMALLEST and self.totals.max() <= 1 / SMALLEST

    def system(self) -> Array:
        """I - M by column: column (t, z) has -M_{t+1}(z, z') in row (t + 1, z'), which is K + z' - z below the
        diagonal. The diagonal is not stored."""
        states, shape = len(self.matrix), self.weights.shape[:-1]
        band = np.zeros((*shape, 2 * states**2))
        moves = band[..., states:].reshape(*shape, states, 2 * states - 1)[..., :-1, :, :states]  # a view
        np.multiply(-self.matrix, self.weights[..., 1:, None, :], out=moves)
        if self.outside is not None:
            moves[self.outside[..., 1:]] = -np.eye(states)
        return band

    def solve(self, piece: int, given: Array, transposed: bool = False) -> Array:
        """f_t, or b_t, of a piece, where only the first, or the last, is given: [B, steps, K]."""
        width = 2 * len(self.matrix)
        columns = self.band[piece].reshape(-1, width).T
        return dtbsv(width - 1, columns, given.ravel(), lower=1, diag=1, trans=transposed).reshape(given.shape)

    def forward(self) -> None:
        """Compute f_t [pieces, B, steps, K] and s_t [pieces, B, steps]."""
        self.joint = np.zeros(self.weights.shape)
        self.joint[0, :, 0] = self.prior * self.weights[0, :, 0]
        for piece in range(len(self.joint)):
            if piece:
                before = normalised(self.joint[piece - 1, :, -1])
                after = self.weights[piece, :, 0] * (before @ self.matrix)
                self.joint[piece, :, 0] = self.where_outside(piece, before, after)
            self.joint[piece] = self.solve(piece, self.joint[piece])
        self.totals = self.joint @ np.ones(len(self.matrix))

    @cached_property
    def futures(self) -> Array:
        """b_t, scaled to sum_z f_t(z) b_t(z) = 1: [pieces, B, steps, K]."""
        futures = np.zeros(self.joint.shape)
        futures[-1, :, -1] = 1
        for piece in reversed(range(len(futures))):
            futures[piece, :, -1] /= self.totals[piece, :, -1, None]
            futures[piece] = self.solve(piece, futures[piece], transposed=True)
            if piece:
                after = futures[piece, :, 0]
                before = (self.weights[piece, :, 0] * after) @ self.matrix.T
                futures[piece - 1, :, -1] = self.where_outside(piece, after, before)
        return futures

    def where_outside(self, piece: int, kept: Array, moved: Array) -> Array:
        """`kept` [B, K] for the sequences that end before this piece, `moved` for the others."""
        return moved if self.outside is None else np.where(self.outside[piece, :, 0, None], kept, moved)

    def log_norms(self) -> Tensor:
        logs = np.log(self.totals)
        logs[..., 1:] -= logs[..., :-1].copy()
        return self.output(logs + self.scale)

    def last(self) -> Belief:
        return Belief(self.tensor(self.joint[-1, :, -1] / self.totals[-1, :, -1, None]))

    def moves(self, pulls: Array) -> Array:
        """Expected transitions [K, K], given o_t b_t."""
        found = products(self.joint[..., :-1, :], pulls[..., 1:, :])
        if len(pulls) > 1:
            found += products(normalised(self.joint[:-1, :, -1]), pulls[1:, :, 0])
        return self.matrix * found

    def visits(self) -> Array:
        """Expected visits [N, K] of the rows of the table."""
        states = len(self.matrix)
        places = (self.rows[..., None] + 1) * states + np.arange(states)  # missing observations: before the first row
        posterior = self.joint * self.futures
        found = np.bincount(places.ravel(), posterior.ravel(), (self.symbols + 1) * states)
        return found.reshape(-1, states)[1:]


def double(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float64, copy=False)


def normalised(values: Array) -> Array:
    """NaN if the sum is zero."""
    with np.errstate(invalid="ignore"):
        return values / values.sum(-1, keepdims=True)


def products(left: Array, right: Array) -> Array:
    """The sum of left right' over all steps: [..., K], [..., K] -> [K, K]."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


def score(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log c_t [B, T] and the last belief."""
    run = Run(prior, transition, potentials, lengths)
    if not run.reliable:
        return homogeneous.score(prior, transition, potentials, lengths)
    return run.log_norms(), run.last()


def filter(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor, Belief]:
    """log c_t [B, T], a_t [B, T, K] (zero in the padding) and the last belief."""
    run = Run(prior, transition, potentials, lengths)
    if not run.reliable:
        return homogeneous.filter(prior, transition, potentials, lengths)
    return run.log_norms(), run.output(run.joint / run.totals[..., None]), run.last()


def smooth(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log c_t [B, T] and p(z_t | x) [B, T, K]."""
    run = Run(prior, transition, potentials, lengths)
    if not run.reliable:
        return homogeneous.smooth(prior, transition, potentials, lengths)
    return run.log_norms(), run.output(run.joint * run.futures)


def expect(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> reference.Expected:
    """The expected statistics of EM."""
    run = Run(prior, transition, potentials, lengths)
    if not run.reliable:
        return homogeneous.expect(prior, transition, potentials, lengths)
    pulls = run.clear_padding(run.weights * run.futures)
    entry = pulls[0, :, 0]
    found = entry, entry * run.prior, run.moves(pulls), run.visits()
    return reference.Expected(run.log_norms(), run.last(), *map(run.tensor, found))


def viterbi(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The Viterbi path [B, T] (-1 in the padding) and its log-probability [B]."""
    problem = Problem(prior, transition, potentials, lengths)
    log_weights = problem.at_steps(problem.table, 0)[0]  # a single piece: [B, T, K]
    moves, scores = log(problem.matrix) + log_weights[:, 1:, None], log(problem.prior) + log_weights[:, 0]
    if problem.outside is not None:
        scores[problem.outside[0, :, 0]] = 0
        moves[problem.outside[0, :, 1:]] = log(np.eye(len(problem.matrix)))
    every = best_scores(scores, moves)
    best = every[:, -1].max(-1)
    if np.isneginf(best).any():  # any path will do; it is that of the other engines
        return homogeneous.viterbi(prior, transition, potentials, lengths)
    pointers = (every[:, :-1, :, None] + moves).argmax(-2)[:, ::-1].tolist()
    last = every[:, -1].argmax(-1).tolist()
    paths = [list(accumulate(one, follow, initial=state)) for one, state in zip(pointers, last, strict=True)]
    states = np.array(paths)[:, ::-1].copy()
    if problem.outside is not None:
        states[problem.outside[0]] = -1
    return torch.from_numpy(states), problem.tensor(best)


def follow(state: int, pointers: list[int]) -> int:
    return pointers[state]


def best_scores(first: Array, moves: Array) -> Array:
    """The log-probability of the best path to each state [B, T, K], given the first [B, K] and log M_t [B, T-1, K, K];
    with few states and sequences, lists are faster than arrays."""
    if first.size * first.shape[1] <= FEW:
        sequences = zip(moves.swapaxes(-1, -2).tolist(), first.tolist(), strict=True)
        return np.array([list(accumulate(columns, best_after, initial=begin)) for columns, begin in sequences])
    scores = np.empty((moves.shape[1] + 1, *first.shape))
    scores[0] = first
    for move, before, after in zip(moves.swapaxes(0, 1), scores[..., None], scores[1:], strict=False):
        (before + move).max(-2, out=after)
    return scores.swapaxes(0, 1)


def best_after(before: list[float], columns: list[list[float]]) -> list[float]:
    return [max(map(add, before, column)) for column in columns]


sample = reference.sample
