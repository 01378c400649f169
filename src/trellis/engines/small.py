"""The engine for small problems on a CPU: plain NumPy, where compiling or loading a kernel would not pay.

With M_t(z, z') = A(z, z') o_t(z'), the joint probabilities f_t = f_{t-1} M_t and the messages b_{t-1} = M_t b_t are
products without normalisation, in float64; s_t = sum_z f_t(z) is p(x_1..t). A problem whose s_t are too small or too
large for that is left to homogeneous.py. Arrays are time-major, [T, B, K].
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.engines import homogeneous, reference
from trellis.engines.arrays import Array, check, check_rows, log
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

STEPS = 64  # maximum length of a sequence
NUMBERS = 1 << 15  # maximum entries of all M_t
SMALLEST = 1e-200  # below this s_t, parts of it may have underflowed
DTYPES = (torch.float32, torch.float64)


def fits(prior: Belief, transition: Any, potentials: Potentials) -> bool:
    """Whether the problem is small: a dense transition, few and short sequences, no gradients.

    Only sizes matter, not whether kernels are compiled already: the same data always take the same path."""
    table, (batch, steps) = potentials.table, potentials.rows.shape
    if not (isinstance(transition, Dense) and potentials.ids is None and 0 < steps <= STEPS and batch > 0):
        return False
    if batch * steps * transition.num_states**2 > NUMBERS or table.device.type != "cpu" or table.dtype not in DTYPES:
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
        self.shape, self.dtype = table.shape, potentials.table.dtype
        self.outside = None  # [T, B] bool, if lengths differ
        self.rows = rows.T  # [T, B]
        if ends.min() < rows.shape[1]:
            self.outside = np.arange(rows.shape[1])[:, None] >= ends
            self.rows = np.where(self.outside, -1, self.rows)
        self.log_weights = table.take(self.rows, 0, mode="clip")  # [T, B, K]
        if self.rows.min() < 0:
            self.log_weights[self.rows < 0] = 0

    def keep_in_padding(self, moves: Array, one: float, zero: float) -> Array:
        """M_t [T, B, K, K], with the identity of an arithmetic with these units in the padding."""
        if self.outside is not None:
            moves[self.outside] = np.where(np.eye(len(self.matrix), dtype=bool), one, zero)
        return moves

    def clear_padding(self, values: Array) -> Array:
        if self.outside is not None:
            values[self.outside] = 0
        return values

    def output(self, values: Array) -> Tensor:
        """[T, B, ...] as a tensor [B, T, ...], zero in the padding."""
        return torch.from_numpy(self.clear_padding(values).swapaxes(0, 1)).to(self.dtype)


class Run(Problem):
    """The forward and backward passes of one problem."""

    def __init__(self, *problem: Any) -> None:
        super().__init__(*problem)
        with np.errstate(over="ignore", invalid="ignore"):
            self.forward()
        extremes = self.totals.min(), self.totals.max()
        self.reliable = extremes[0] >= SMALLEST and extremes[1] <= 1 / SMALLEST

    def forward(self) -> None:
        """Compute f_t [T, B, K] and s_t [T, B]."""
        self.weights = np.exp(self.log_weights)
        self.moves = self.keep_in_padding(self.matrix * self.weights[:, :, None], 1, 0)
        self.joint = np.empty_like(self.weights)
        np.multiply(self.prior, self.weights[0], self.joint[0])
        product, joint = by_sequence(self.joint)
        before = joint[0]
        for move, after in zip(squeezed(self.moves)[1:], joint[1:], strict=True):
            before = product(before, move, after)
        self.totals = self.joint.sum(-1)  # s_t [T, B]

    @cached_property
    def futures(self) -> Array:
        """b_t / s_T [T, B, K]."""
        futures = np.empty_like(self.joint)
        futures[-1] = 1 / self.totals[-1][:, None]
        product, messages = by_sequence(futures)
        moves, message = squeezed(self.moves.swapaxes(-1, -2)), messages[-1]
        for move, before in zip(moves[:0:-1], messages[-2::-1], strict=True):
            message = product(message, move, before)
        return futures

    def log_norms(self) -> Tensor:
        logs = np.log(self.totals)
        logs[1:] -= logs[:-1].copy()
        return self.output(logs)

    def last(self) -> Belief:
        return Belief(torch.from_numpy(self.joint[-1] / self.totals[-1][:, None]).to(self.dtype))

    def visits(self) -> Array:
        """Expected visits [N, K] of the rows of the table."""
        rows, states = self.shape
        places = (self.rows[..., None] + 1) * states + np.arange(states)  # missing observations: before the first row
        posterior = self.joint * self.futures
        return np.bincount(places.ravel(), posterior.ravel(), (rows + 1) * states).reshape(-1, states)[1:]


def double(tensor: Tensor) -> Array:
    return tensor.detach().numpy().astype(np.float64, copy=False)


def by_sequence(vectors: Array) -> Any:
    """The product of vectors and matrices, and vectors [T, B, K] in the shape it takes; faster for one sequence."""
    return (np.dot, vectors[:, 0]) if vectors.shape[1] == 1 else (np.matmul, vectors[:, :, None])


def squeezed(moves: Array) -> Array:
    """M_t as the product of `by_sequence` takes it."""
    return moves[:, 0] if moves.shape[1] == 1 else moves


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
    states = len(run.matrix)
    pulls = run.clear_padding(run.weights * run.futures)
    moves = run.matrix * (run.joint[:-1].reshape(-1, states).T @ pulls[1:].reshape(-1, states))
    found = pulls[0], pulls[0] * run.prior, moves, run.visits()
    return reference.Expected(run.log_norms(), run.last(), *(torch.from_numpy(one).to(run.dtype) for one in found))


def viterbi(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The Viterbi path [B, T] (-1 in the padding) and its log-probability [B]."""
    problem = Problem(prior, transition, potentials, lengths)
    moves = problem.keep_in_padding(log(problem.matrix) + problem.log_weights[:, :, None], 0, -np.inf)
    moves = np.ascontiguousarray(moves.swapaxes(-1, -2))  # by the state after, then before
    scores, pointers = problem.log_weights.copy(), np.empty(problem.log_weights.shape, np.int64)
    scores[0] += log(problem.prior)
    problem.clear_padding(scores)
    joint, each = np.empty(moves.shape[1:]), np.arange(scores[0].size).reshape(scores[0].shape)
    repeated, rows = np.repeat(each[:, None], each.shape[1], 1), each * each.shape[1]
    for move, before, after, pointer in zip(moves[1:], scores[:-1], scores[1:], pointers[1:], strict=True):
        before.take(repeated, out=joint, mode="clip")  # take and argmax: faster than broadcasting and reduction
        np.add(joint, move, out=joint)
        joint.argmax(-1, out=pointer)
        joint.take(pointer + rows, out=after, mode="clip")
    best = scores[-1].max(-1)
    if np.isneginf(best).any():  # any path will do; it is that of the other engines
        return homogeneous.viterbi(prior, transition, potentials, lengths)
    path = [scores[-1].argmax(-1).tolist()]
    for steps in pointers[:0:-1].tolist():
        path.append([pointer[state] for pointer, state in zip(steps, path[-1], strict=True)])
    states = np.array(path[::-1])
    if problem.outside is not None:
        states[problem.outside] = -1
    return torch.from_numpy(states.T.copy()), torch.from_numpy(best).to(problem.dtype)


sample = reference.sample
