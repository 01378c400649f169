"""Passes over time in NumPy and BLAS for a few short sequences, for which compiling or loading a kernel takes too long.

Let o_t be the potentials of step t, and M_t(z, z') = A(z, z') o_t(z'). The forward and backward messages, f_t = f_{t-1}
M_t and b_{t-1} = M_t b_t, solve a block-bidiagonal system, (I - M) f = (f_0, 0, ...), and its transpose. The matrix of
the system is triangular and banded, so BLAS runs each recursion in one call (dtbsv), for all sequences. Arrays are
[B, T, K], in float64.

s_t = sum_z f_t(z) must neither underflow nor overflow: o_t is scaled to a maximum of one and, in longer sequences,
divided by its mean norm in the previous E-step. If that does not suffice, o_t is divided by an estimate of
p(x_t | x_<t). The estimate is computed from the filtered distributions of the previous E-step or, in the first E-step,
from x_t and the few observations before it. If s_t leaves its range nevertheless, p(x_t | x_<t) is known exactly up to
that step. These steps are divided by it, and the pass runs again.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import accumulate
from operator import add
from typing import Any

import numpy as np
from scipy.linalg.blas import dtbsv

Array = np.ndarray[Any, Any]
STEPS, SHORT = 1024, 64  # maximum length of a sequence; of a short sequence, and of any sequence for Viterbi
NUMBERS, SHORT_NUMBERS = 1 << 14, 1 << 15  # maximum entries of all M_t together; the same if all sequences are short
UNSCALED = 128  # steps up to which the first attempt leaves s_t as it is
ATTEMPTS = 16  # attempts to keep s_t in its range
HISTORY = 2  # previous steps from which the first norms are estimated
MANY = 64  # from this many steps on, computing all M_t as one product is faster
SMALLEST = 1e-200  # if s_t is below this, parts of it may have underflowed
SMALLEST_NORM = 1e-50
FEW = 32  # up to this many entries of M_t, over all sequences, lists are faster than arrays
LOWEST = np.finfo(np.float64).min


def is_small(shape: tuple[int, ...], states: int, viterbi: bool = False) -> bool:
    """Whether a batch of shape [B, T] has few and short sequences. The answer does not depend on whether kernels are
    compiled already, so the same data are always processed in the same way."""
    batch, longest = shape
    if not (0 < longest <= (min(SHORT, STEPS) if viterbi else STEPS) and batch > 0):
        return False
    return batch * longest * states**2 <= (SHORT_NUMBERS if longest <= SHORT else NUMBERS)


class Sequences:
    """Sequences whose observations are rows of a table; -1 is missing."""

    def __init__(self, rows: Array, lengths: Array) -> None:
        self.batch, self.steps = rows.shape
        outside = None
        if np.minimum.reduce(lengths) < self.steps:
            outside = np.arange(self.steps) >= lengths[:, None]
            rows = np.where(outside, -1, rows)
        self.outside = outside  # [B, T] bool, if there is any padding
        self.rows = rows
        self.missing = rows < 0 if np.minimum.reduce(rows, None) < 0 else None
        self.distinct = self.missing is None and bool((rows.ravel() == np.arange(rows.size)).all())  # a row per step
        self.entries: dict[int, Array] = {}
        self.systems: dict[int, System] = {}
        self.before: Run | None = None  # the previous solution, kept for long sequences only
        self.steady = True  # whether one rate has been sufficient for all steps

    def solve(self, prior: Array, matrix: Array, table: Array) -> Run | None:
        """Run the forward pass. The result is None if s_t cannot be kept in its range."""
        long, before = self.steps > UNSCALED, self.before
        steady = self.steady and (before is not None or not long)
        run = Run(self, prior, matrix, table, before.rate() if steady and before is not None else 0.0)
        if not steady:
            run.divide(run.predicted(before))
        valid = -1
        for _ in range(ATTEMPTS):
            if run.forward():
                self.before = run if long else None
                return run
            if run.norms is None:
                self.steady = False
                run.divide(run.predicted(before))
                continue
            known = run.known()
            if (found := int(np.count_nonzero(known))) <= valid:
                break
            valid = found
            run.divide(run.corrections(known))
        self.before = None
        return None

    def system(self, states: int) -> System:
        if states not in self.systems:
            self.systems[states] = System(self.rows.shape, states)
        return self.systems[states]

    def visits(self, posterior: Array, symbols: int) -> Array:
        """The sum of p(z_t | x) [B, T, K] over the steps that observe each row of the table: [N, K]."""
        states = posterior.shape[-1]
        if self.distinct and symbols == self.rows.size:
            return posterior.reshape(-1, states)
        found = np.bincount(self.entry(states), posterior.ravel(), (symbols + 1) * states)
        return found.reshape(-1, states)[1:]

    def entry(self, states: int) -> Array:
        """The flat index in a table [N + 1, K] of each step's row and each state. Row 0 is for missing observations."""
        if states not in self.entries:
            self.entries[states] = ((self.rows[..., None] + 1) * states + np.arange(states)).ravel()
        return self.entries[states]

    def at_steps(self, table: Array, missing: float) -> Array:
        """For each step, the row of the table that it observes: [B, T, ...]. If its observation is missing, every entry
        of the row is the number `missing`."""
        if self.distinct and len(table) == self.rows.size:
            return table.reshape(*self.rows.shape, *table.shape[1:])
        values = table.take(self.rows, 0, mode="clip")
        if self.missing is not None:
            values[self.missing] = missing
        return values

    @cached_property
    def inside(self) -> int:
        """The number of steps without the padding."""
        return self.rows.size - (0 if self.outside is None else int(np.count_nonzero(self.outside)))

    def clear_padding(self, values: Array) -> Array:
        if self.outside is not None:
            values[self.outside] = 0
        return values


class System:
    """The matrix I - M, stored by column: column (t, z) has -M_{t+1}(z, z') in row (t + 1, z'), which is K + z' - z
    below the diagonal. The diagonal is not stored. The memory is used again by the next run over the same sequences."""

    def __init__(self, shape: tuple[int, ...], states: int) -> None:
        self.states, self.band = states, np.zeros((*shape, 2 * states**2))
        self.inner = moves_of(self.band)[:, :-1]  # -M_1, -M_2, ...
        self.one = np.zeros((states, 2 * states**2))  # M_t is linear in o_t
        self.diagonal = np.einsum("izi->iz", moves_of(self.one))

    def filled(self, matrix: Array, weights: Array, outside: Array | None) -> Array:
        """The band [B, T, 2 K^2] for a transition matrix and o_t. In the padding, every state is followed by itself."""
        if weights.shape[0] * weights.shape[1] < MANY:
            np.multiply(-matrix, weights[:, 1:, None, :], out=self.inner)
        else:
            np.negative(matrix.T, out=self.diagonal)
            np.matmul(weights.reshape(-1, self.states)[1:], self.one, out=self.band.reshape(-1, len(self.one[0]))[:-1])
            self.band[:, -1] = 0
        if outside is not None:
            self.inner[outside[:, 1:]] = -np.eye(self.states)
        return self.band


class Run:
    """The forward and backward passes for a prior [K] or [B, K], a transition matrix [K, K] and log-potentials [N, K].

    The potentials of step t, o_t [K], are scaled so that the largest of them is exp(-rate)."""

    norms: Array | None = None  # [B, T]: what o_t was divided by, besides its maximum

    def __init__(self, sequences: Sequences, prior: Array, matrix: Array, table: Array, rate: float = 0.0) -> None:
        self.sequences, self.prior, self.matrix, self.symbols = sequences, prior, matrix, len(table)
        self.offset = rate
        if len(table) > sequences.rows.size:
            scale, self.weights = scaled(sequences.at_steps(table, 0), rate)
        else:
            scale, weights = scaled(table, rate)
            scale, self.weights = sequences.at_steps(scale, rate), sequences.at_steps(weights, math.exp(-rate))
        self.scale = sequences.clear_padding(scale) if rate else scale

    def predicted(self, before: Run | None) -> Array:
        """Estimates of p(x_t | x_<t) from the filtered distributions of an earlier run, or of the last few steps."""
        if before is not None:
            return self.step(before.joint, before.totals)[2]
        joint, totals = self.weights, self.weights @ np.ones(len(self.matrix))
        for _ in range(HISTORY):
            joint, totals, norms = self.step(joint, totals)
        return norms

    def step(self, joint: Array, totals: Array) -> tuple[Array, Array, Array]:
        """One step of the filter, computed for all t at once: f_t, s_t and p(x_t | x_<t), given f_{t-1} and s_{t-1}."""
        after = np.empty(self.weights.shape)
        np.matmul(joint[:, :-1], self.matrix, out=after[:, 1:])
        after[:, 0] = self.prior
        after *= self.weights
        found = after @ np.ones(len(self.matrix))
        norms = found.copy()
        norms[:, 1:] /= totals[:, :-1]
        norms = np.maximum(norms, SMALLEST_NORM)
        if self.sequences.outside is not None:
            norms[self.sequences.outside] = 1
        return after, found, norms

    def divide(self, norms: Array) -> None:
        """Divide o_t by norms [B, T]."""
        self.weights /= norms[..., None]
        self.norms = norms if self.norms is None else self.norms * norms

    def known(self) -> Array:
        """The steps before s_t first leaves its range: [B, T] bool."""
        return np.logical_and.accumulate((self.totals >= SMALLEST) & (self.totals <= 1 / SMALLEST), -1)

    def corrections(self, known: Array) -> Array:
        """The factors by which the norms of known steps [B, T] differ from the exact ones: s_t / s_{t-1}."""
        found = np.ones(self.totals.shape)
        ratios = found.copy()
        ratios[:, 0] = self.totals[:, 0]
        np.divide(self.totals[:, 1:], self.totals[:, :-1], out=ratios[:, 1:], where=known[:, 1:])
        return np.where(known, ratios, found)

    def solve(self, values: Array, transposed: bool = False) -> None:
        """Compute f_t from the first one or, if `transposed`, b_t from the last one, in place: [B, T, K]."""
        width = 2 * len(self.matrix)
        columns = self.band.reshape(-1, width).T
        dtbsv(width - 1, columns, values.reshape(-1), lower=1, diag=1, trans=transposed, overwrite_x=1)

    def forward(self) -> bool:
        """Compute f_t [B, T, K] and s_t [B, T]; returns whether all s_t are in their range."""
        self.band = self.sequences.system(len(self.matrix)).filled(self.matrix, self.weights, self.sequences.outside)
        self.joint = np.zeros(self.weights.shape)
        self.joint[:, 0] = self.prior * self.weights[:, 0]
        self.solve(self.joint)
        self.totals = self.joint @ np.ones(len(self.matrix))
        lowest, highest = np.minimum.reduce(self.totals, None), np.maximum.reduce(self.totals, None)
        return bool(lowest >= SMALLEST and highest <= 1 / SMALLEST)

    @cached_property
    def futures(self) -> Array:
        """b_t, scaled to sum_z f_t(z) b_t(z) = 1: [B, T, K]."""
        futures = np.zeros(self.joint.shape)
        futures[:, -1] = 1 / self.totals[:, -1, None]
        self.solve(futures, transposed=True)
        return futures

    def log_likelihood(self) -> Array:
        """log p(x): [B]."""
        return np.log(self.totals[:, -1]) + np.add.reduce(self.log_scale(), -1)

    def log_scale(self) -> Array:
        """The logarithm of the factor by which o_t was divided, zero in the padding: [B, T]."""
        return self.scale if self.norms is None else self.scale + np.log(self.norms)

    def rate(self) -> float:
        """The mean of log p(x_t | x_<t) over all steps, if each o_t is scaled to a maximum of one."""
        total = np.add.reduce(np.log(self.totals[:, -1]))
        if self.norms is not None:
            total += np.add.reduce(np.log(self.norms), None)
        return float(total) / self.sequences.inside + self.offset

    def log_norms(self) -> Array:
        """log p(x_t | x_<t): [B, T]."""
        logs = np.log(self.totals)
        logs[:, 1:] -= logs[:, :-1].copy()
        return self.sequences.clear_padding(logs + self.log_scale())

    def filtered(self) -> Array:
        """p(z_t | x_<=t): [B, T, K]."""
        return self.sequences.clear_padding(self.joint / self.totals[..., None])

    def smoothed(self) -> Array:
        """p(z_t | x): [B, T, K]."""
        return self.sequences.clear_padding(self.joint * self.futures)

    def last(self) -> Array:
        """The filtered distribution at the end of each sequence: [B, K]."""
        return self.joint[:, -1] / self.totals[:, -1, None]

    def expected(self) -> tuple[Array, Array, Array]:
        """d log p(x) / d prior [B, K], expected transitions [K, K], and how often each state is expected to emit each
        row of the table [N, K]."""
        pulls = self.sequences.clear_padding(self.weights * self.futures)  # o_t b_t
        moves = products(self.joint[:, :-1], pulls[:, 1:])
        return pulls[:, 0], self.matrix * moves, self.sequences.visits(self.joint * self.futures, self.symbols)


def scaled(table: Array, rate: float) -> tuple[Array, Array]:
    """Two arrays: the scale of each row, which is the maximum of the row plus `rate`; and exp(row - scale)."""
    table = np.asfortranarray(table)  # the maximum along the axis of the smallest stride takes ten times as long
    scale = np.maximum(np.maximum.reduce(table, -1), LOWEST) + rate
    return scale, np.exp(table - scale[..., None])


def moves_of(columns: Array) -> Array:
    """A view of the transition matrices -M_{t+1} that a `System` stores in its columns for each step t:
    [..., 2 K^2] -> [..., K, K]."""
    states = math.isqrt(columns.shape[-1] // 2)
    return columns[..., states:].reshape(*columns.shape[:-1], states, 2 * states - 1)[..., :states]


def products(left: Array, right: Array) -> Array:
    """The sum over all steps of the outer product of `left` and `right`: [..., K], [..., K] -> [K, K]."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


def viterbi(sequences: Sequences, prior: Array, matrix: Array, table: Array) -> tuple[Array, Array] | None:
    """The Viterbi path [B, T] (-1 in the padding) and its log-probability [B]; None if a sequence is impossible."""
    log_weights, outside = sequences.at_steps(table, 0), sequences.outside  # [B, T, K]
    with np.errstate(divide="ignore"):
        moves, scores = np.log(matrix) + log_weights[:, 1:, None], np.log(prior) + log_weights[:, 0]
    if outside is not None:
        scores[outside[:, 0]] = 0
        moves[outside[:, 1:]] = np.where(np.eye(len(matrix)), 0.0, -np.inf)
    every = best_scores(scores, moves)
    best = np.maximum.reduce(every[:, -1], -1)
    if np.minimum.reduce(best) == -np.inf:
        return None
    pointers = (every[:, :-1, :, None] + moves).argmax(-2)[:, ::-1].tolist()
    last = every[:, -1].argmax(-1).tolist()
    paths = [list(accumulate(one, follow, initial=state)) for one, state in zip(pointers, last, strict=True)]
    states = np.array(paths)[:, ::-1].copy()
    if outside is not None:
        states[outside] = -1
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
