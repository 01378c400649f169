"""Few short sequences: NumPy and BLAS, where compiling or loading a kernel would not pay.

With M_t(z, z') = A(z, z') o_t(z') and o_t scaled to a maximum of one, f_t = f_{t-1} M_t and b_{t-1} = M_t b_t are
solutions of a block-bidiagonal system and of its transpose: (I - M) f = (f_0, 0, ...). Its matrix is triangular and
banded, so BLAS runs each recursion in one call (dtbsv), for all sequences. A sequence is cut into pieces, and f_t is
normalised where a piece begins; s_t = sum_z f_t(z). Arrays are [pieces, B, steps, K], in float64.

How long a piece may be depends on how fast s_t decreases. Long sequences are solved in one piece if the rate of that,
estimated from their first steps or from the previous E-step, can be divided out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, islice
from operator import add
from typing import Any

import numpy as np
from scipy.linalg.blas import dtbsv

Array = np.ndarray[Any, Any]
STEPS, SHORT = 1024, 64  # maximum length of a sequence; of a short one, and for Viterbi
NUMBERS, SHORT_NUMBERS = 1 << 14, 1 << 15  # maximum entries of all M_t; if all sequences are short
PIECES = 128, 16  # steps of a piece; the second if s_t underflows in the first
MANY = 64  # steps from which all M_t are faster as one product
PILOTS = 64, 8  # steps from which the rate is estimated; the second if s_t underflows in the first
SMALLEST = 1e-200  # below this s_t, parts of it may have underflowed
FEW = 32  # entries of a step's M_t for which lists are faster than arrays
LOWEST = np.finfo(np.float64).min


def is_small(shape: tuple[int, ...], states: int, viterbi: bool = False) -> bool:
    """Whether sequences of shape [B, T] are few and short. Only sizes matter, not whether kernels are compiled already:
    the same data always take the same path."""
    batch, longest = shape
    if not (0 < longest <= (min(SHORT, STEPS) if viterbi else STEPS) and batch > 0):
        return False
    return batch * longest * states**2 <= (SHORT_NUMBERS if longest <= SHORT else NUMBERS)


class Sequences:
    """Sequences cut into pieces; the observation of a step is a row of a table, and -1 is missing."""

    def __init__(self, rows: Array, lengths: Array, longest: int | None = None) -> None:
        batch, self.steps = rows.shape
        self.given = rows, lengths
        pieces = 1 if longest is None else -(-self.steps // longest)
        size = -(-self.steps // pieces)
        outside = None
        if np.minimum.reduce(lengths) < pieces * size:
            outside = np.arange(pieces * size) >= lengths[:, None]
            rows = np.where(outside, -1, np.pad(rows, ((0, 0), (0, pieces * size - self.steps))))
            outside = outside.reshape(batch, pieces, size).swapaxes(0, 1)
        self.outside = outside  # [pieces, B, steps] bool, if there is any padding
        self.rows = rows.reshape(batch, pieces, size).swapaxes(0, 1)
        self.missing = self.rows < 0 if np.minimum.reduce(rows, None) < 0 else None
        self.entries: dict[int, Array] = {}
        self.rate: float | None = None  # mean of log s_t - log s_{t-1}, when last solved in one piece

    def solve(self, prior: Array, matrix: Array, table: Array) -> Run | None:
        """Run both passes in one piece, or else in pieces; None if s_t underflows even in these."""
        problem = prior, matrix, table
        for rate in self.rates(*problem) if self.steps > PIECES[0] else (0.0,):
            if (found := Run(self, *problem, rate)).reliable:
                self.rate = found.rate() if self.steps > PIECES[0] else None
                return found
        self.rate = None
        runs = (Run(cut, *problem) for cut in self.cuts)
        return next((found for found in runs if found.reliable), None)

    def rates(self, prior: Array, matrix: Array, table: Array) -> Iterator[float]:
        """Estimates of the rate: that of the last solution, and that of the first steps."""
        if self.rate is not None:
            yield self.rate
        runs = (Run(beginning, prior, matrix, table) for beginning in self.beginnings)
        yield from islice((run.rate() for run in runs if run.reliable), 1)

    @cached_property
    def beginnings(self) -> list[Sequences]:
        """The first steps of the sequences."""
        rows, lengths = self.given
        return [Sequences(rows[:, :steps], np.minimum(lengths, steps)) for steps in PILOTS]

    @cached_property
    def cuts(self) -> list[Sequences]:
        """The same sequences in pieces."""
        return [Sequences(*self.given, longest) for longest in PIECES if longest < self.steps]

    def entry(self, states: int) -> Array:
        """The entries (row, state) of a table [N + 1, K] that every step visits; missing observations visit row 0."""
        if states not in self.entries:
            self.entries[states] = ((self.rows[..., None] + 1) * states + np.arange(states)).ravel()
        return self.entries[states]

    def at_steps(self, table: Array, missing: float) -> Array:
        """The table's rows at every step: [pieces, B, steps, ...]."""
        values = table.take(self.rows, 0, mode="clip")
        if self.missing is not None:
            values[self.missing] = missing
        return values

    def clear_padding(self, values: Array) -> Array:
        if self.outside is not None:
            values[self.outside] = 0
        return values

    def output(self, values: Array) -> Array:
        """[pieces, B, steps, ...] as [B, T, ...], zero in the padding."""
        pieces, batch, size, *others = self.clear_padding(values).shape
        return values.swapaxes(0, 1).reshape(batch, pieces * size, *others)[:, : self.steps]


class Run:
    """The forward and backward passes: a prior [K] or [B, K], a transition matrix [K, K], log-potentials [N, K].

    o_t is scaled to a maximum of exp(-rate)."""

    def __init__(self, sequences: Sequences, prior: Array, matrix: Array, table: Array, rate: float = 0.0) -> None:
        self.sequences, self.prior, self.matrix, self.symbols = sequences, prior, matrix, len(table)
        self.offset = rate
        if len(table) > sequences.rows.size:
            scale, weights = scaled(sequences.at_steps(table, 0), rate)
        else:
            scale, weights = scaled(table, rate)
            scale, weights = sequences.at_steps(scale, rate), sequences.at_steps(weights, np.exp(-rate) if rate else 1)
        self.scale = sequences.clear_padding(scale) if rate else scale  # [pieces, B, steps]
        self.weights = weights  # [pieces, B, steps, K]
        self.band = self.system()
        self.forward()
        lowest, highest = np.minimum.reduce(self.totals, None), np.maximum.reduce(self.totals, None)
        self.reliable = lowest >= SMALLEST and highest <= 1 / SMALLEST

    def system(self) -> Array:
        """I - M by column: column (t, z) has -M_{t+1}(z, z') in row (t + 1, z'), which is K + z' - z below the
        diagonal. The diagonal is not stored."""
        states, shape, outside = len(self.matrix), self.weights.shape[:-1], self.sequences.outside
        band = np.zeros((*shape, 2 * states**2))
        if self.scale.size < MANY:
            np.multiply(-self.matrix, self.weights[..., 1:, None, :], out=moves_of(band)[..., :-1, :, :])
        else:
            one, diagonal = np.zeros((states, 2 * states**2)), np.arange(states)  # M_t is linear in o_t
            moves_of(one)[diagonal, :, diagonal] = -self.matrix.T
            np.matmul(self.weights.reshape(-1, states)[1:], one, out=band.reshape(-1, 2 * states**2)[:-1])
            band[..., -1, :] = 0
        if outside is not None:
            moves_of(band)[..., :-1, :, :][outside[..., 1:]] = -np.eye(states)
        return band

    def solve(self, piece: int, values: Array, transposed: bool = False) -> None:
        """Compute f_t, or b_t, of a piece [B, steps, K] in place; the first, or the last, is given."""
        width = 2 * len(self.matrix)
        columns = self.band[piece].reshape(-1, width).T
        dtbsv(width - 1, columns, values.reshape(-1), lower=1, diag=1, trans=transposed, overwrite_x=1)

    def forward(self) -> None:
        """Compute f_t [pieces, B, steps, K] and s_t [pieces, B, steps]."""
        self.joint = np.zeros(self.weights.shape)
        self.joint[0, :, 0] = self.prior * self.weights[0, :, 0]
        for piece in range(len(self.joint)):
            if piece:
                before = normalised(self.joint[piece - 1, :, -1])
                after = self.weights[piece, :, 0] * (before @ self.matrix)
                self.joint[piece, :, 0] = self.where_outside(piece, before, after)
            self.solve(piece, self.joint[piece])
        self.totals = self.joint @ np.ones(len(self.matrix))

    @cached_property
    def futures(self) -> Array:
        """b_t, scaled to sum_z f_t(z) b_t(z) = 1: [pieces, B, steps, K]."""
        futures = np.zeros(self.joint.shape)
        futures[-1, :, -1] = 1
        for piece in reversed(range(len(futures))):
            futures[piece, :, -1] /= self.totals[piece, :, -1, None]
            self.solve(piece, futures[piece], transposed=True)
            if piece:
                after = futures[piece, :, 0]
                before = (self.weights[piece, :, 0] * after) @ self.matrix.T
                futures[piece - 1, :, -1] = self.where_outside(piece, after, before)
        return futures

    def where_outside(self, piece: int, kept: Array, moved: Array) -> Array:
        """`kept` [B, K] for the sequences that end before this piece, `moved` for the others."""
        outside = self.sequences.outside
        return moved if outside is None else np.where(outside[piece, :, 0, None], kept, moved)

    def log_likelihood(self) -> Array:
        """log p(x): [B]."""
        return np.add.reduce(np.log(self.totals[..., -1]) + np.add.reduce(self.scale, -1), 0)

    def rate(self) -> float:
        """The mean of log s_t - log s_{t-1} over all steps, for o_t with a maximum of one."""
        steps = self.scale.size if self.sequences.outside is None else np.count_nonzero(~self.sequences.outside)
        return float(np.add.reduce(np.log(self.totals[..., -1]), None)) / steps + self.offset

    def log_norms(self) -> Array:
        """log p(x_t | x_<t): [B, T]."""
        logs = np.log(self.totals)
        logs[..., 1:] -= logs[..., :-1].copy()
        return self.sequences.output(logs + self.scale)

    def filtered(self) -> Array:
        """p(z_t | x_<=t): [B, T, K]."""
        return self.sequences.output(self.joint / self.totals[..., None])

    def smoothed(self) -> Array:
        """p(z_t | x): [B, T, K]."""
        return self.sequences.output(self.joint * self.futures)

    def last(self) -> Array:
        """The filtered distribution at the end of each sequence: [B, K]."""
        return self.joint[-1, :, -1] / self.totals[-1, :, -1, None]

    def expected(self) -> tuple[Array, Array, Array]:
        """d log p(x) / d prior [B, K]; expected transitions [K, K] and visits [N, K] of the rows of the table."""
        pulls = self.sequences.clear_padding(self.weights * self.futures)  # o_t b_t
        moves = products(self.joint[..., :-1, :], pulls[..., 1:, :])
        if len(pulls) > 1:
            moves += products(normalised(self.joint[:-1, :, -1]), pulls[1:, :, 0])
        states = len(self.matrix)
        posterior = (self.joint * self.futures).ravel()
        visits = np.bincount(self.sequences.entry(states), posterior, (self.symbols + 1) * states)
        return pulls[0, :, 0], self.matrix * moves, visits.reshape(-1, states)[1:]


def scaled(table: Array, rate: float) -> tuple[Array, Array]:
    """The scale, which is the maximum of each row plus the rate, and exp(row - scale)."""
    table = np.asfortranarray(table)  # the maximum along the axis of the smallest stride takes ten times as long
    scale = np.maximum(np.maximum.reduce(table, -1), LOWEST) + rate
    return scale, np.exp(table - scale[..., None])


def moves_of(columns: Array) -> Array:
    """The entries of -M_{t+1} in the columns of step t: a view, [..., 2 K^2] -> [..., K, K]."""
    states = math.isqrt(columns.shape[-1] // 2)
    return columns[..., states:].reshape(*columns.shape[:-1], states, 2 * states - 1)[..., :states]


def normalised(values: Array) -> Array:
    """NaN if the sum is zero."""
    with np.errstate(invalid="ignore"):
        return values / values.sum(-1, keepdims=True)


def products(left: Array, right: Array) -> Array:
    """The sum of left right' over all steps: [..., K], [..., K] -> [K, K]."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


def viterbi(sequences: Sequences, prior: Array, matrix: Array, table: Array) -> tuple[Array, Array] | None:
    """The Viterbi path [B, T] (-1 in the padding) and its log-probability [B]; None if a sequence is impossible."""
    log_weights, outside = sequences.at_steps(table, 0)[0], sequences.outside  # a single piece: [B, T, K]
    with np.errstate(divide="ignore"):
        moves, scores = np.log(matrix) + log_weights[:, 1:, None], np.log(prior) + log_weights[:, 0]
    if outside is not None:
        scores[outside[0, :, 0]] = 0
        moves[outside[0, :, 1:]] = np.where(np.eye(len(matrix)), 0.0, -np.inf)
    every = best_scores(scores, moves)
    best = np.maximum.reduce(every[:, -1], -1)
    if np.minimum.reduce(best) == -np.inf:
        return None
    pointers = (every[:, :-1, :, None] + moves).argmax(-2)[:, ::-1].tolist()
    last = every[:, -1].argmax(-1).tolist()
    paths = [list(accumulate(one, follow, initial=state)) for one, state in zip(pointers, last, strict=True)]
    states = np.array(paths)[:, ::-1].copy()
    if outside is not None:
        states[outside[0]] = -1
    return states, best


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
