"""Scores and expected statistics on a CPU (numba), if the live states of each step are one class of consecutive states.
Blocks are read from the dense transition matrix. The other functions are those of compiled.py."""

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, autograd, from_numpy
from torch.autograd.function import once_differentiable

from trellis.engines import reference
from trellis.engines.arrays import Array, array, check_rows
from trellis.engines.compiled import (
    THREAD_WORTH,
    filter as filter,
    possible,
    sample as sample,
    share_log,
    smooth as smooth,
    total,
    viterbi as viterbi,
)
from trellis.kernels import team
from trellis.kernels.scan import classes, serial
from trellis.transitions import ClassBlocks
from trellis.types import Belief, Potentials


class Observed(NamedTuple):
    """The integer inputs."""

    begins: Tensor  # [C + 1]: the first state of each class, and the number of states
    classes: Tensor  # [B, T]: the class of the live states
    rows: Tensor  # [B, T]: the observed row of the table
    lengths: Tensor  # [B]

    @classmethod
    def of(cls, transition: ClassBlocks, potentials: Potentials, lengths: Tensor) -> "Observed":
        return cls(transition.begins, transition.groups.rows, potentials.rows, lengths)


class Problem(NamedTuple):
    """The inputs of the kernels, as arrays."""

    prior: Array  # [B, k]
    matrix: Array  # [K, K]
    begins: Array  # [C + 1]
    classes: Array  # [B, T]
    table: Array  # [N, k]: potentials, scaled to a maximum of one
    rows: Array  # [B, T]
    lengths: Array  # [B]
    scale: Array  # [N]: log of the factor removed from each row

    @classmethod
    def of(cls, prior: Tensor, matrix: Tensor, table: Tensor, rest: "Observed") -> "Problem":
        rows, ends, weights = array(rest.rows), array(rest.lengths), array(table)
        check_rows(len(weights), rows, ends)
        scale = weights.max(-1)
        scale[scale == -np.inf] = 0
        tail = np.exp(weights - scale[:, None]), rows, ends, scale
        return cls(array(prior), array(matrix), array(rest.begins), array(rest.classes), *tail)

    def workers(self, copied: int = 0) -> int:
        """The number of threads. If each thread has a copy of the result, of `copied` numbers, it should compute more
        numbers than that."""
        numbers = math.prod(self.rows.shape) * self.prior.shape[1] ** 2
        return team.size(min(len(self.rows), 1 + numbers // max(THREAD_WORTH, copied)))


def run_forward(problem: Problem, keep: bool) -> tuple[Array, Array, Array]:
    """The forward pass: p(x_t | x_<t) [B, T] for the scaled potentials, p(z_t | x_<=t) [B, T, k] (only the last step
    unless `keep`), and the last state distribution [B, k]."""
    (batch, steps), live, dtype = problem.rows.shape, problem.prior.shape[1], problem.table.dtype
    norms, last = np.ones((batch, steps), dtype), problem.prior.copy()
    alphas = np.zeros((batch, steps if keep else 1, live), dtype)
    team.share(classes.forward, problem.workers(), *problem[:7], alphas, norms, last)
    return norms, alphas, last


def log_norms(problem: Problem, norms: Array) -> Tensor:
    """log p(x_t | x_<t), with the scales restored: [B, T]."""
    logs = np.empty_like(norms)
    share_log(0, 1, norms, logs)
    serial.add_scales(0, 1, problem.scale, problem.rows, problem.lengths, logs)
    return from_numpy(logs)


def run_adjoint(
    problem: Problem, norms: Array, alphas: Array, weights: Array, last_grad: Array
) -> tuple[Array, Array, Array]:
    """The backward pass: the gradients of a loss L with respect to prior [B, k], matrix [K, K] and log table [N, k].

    L = sum_t weights_t log p(x_t | x_<t) + <last_grad, last state distribution>."""
    workers, dtype, d_prior = problem.workers(problem.matrix.size), problem.table.dtype, last_grad.copy()
    d_matrix = np.zeros((workers, *problem.matrix.shape), dtype)
    d_table = np.zeros((workers, *problem.table.shape), dtype)
    team.share(classes.adjoint, workers, *problem[1:7], norms, alphas, weights, d_prior, d_matrix, d_table)
    return d_prior, total(d_matrix, dtype), total(d_table, dtype)


class Score(autograd.Function):
    """log p(x_t | x_<t) [B, T] and the last state distribution, differentiable in prior, matrix and log table."""

    @staticmethod
    def forward(ctx: Any, prior: Tensor, matrix: Tensor, table: Tensor, rest: Observed) -> Any:
        problem = Problem.of(prior, matrix, table, rest)
        norms, alphas, last = run_forward(problem, keep=any(ctx.needs_input_grad))
        ctx.run = problem, norms, alphas
        return log_norms(problem, norms), from_numpy(last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return *map(from_numpy, run_adjoint(*ctx.run, *map(array, grads))), None


def score(
    prior: Belief, transition: ClassBlocks, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Belief]:  # fmt: skip
    """log p(x_t | x_<t) [B, T] and the last state distribution; differentiable."""
    rest = Observed.of(transition, potentials, lengths)
    norms, last = Score.apply(prior.probs, transition.whole, potentials.table, rest)
    return norms, Belief(last)


def expect(
    prior: Belief, transition: ClassBlocks, potentials: Potentials, lengths: Tensor
) -> reference.Expected:  # fmt: skip
    """The expected statistics of EM. Expected transitions are over all states: [K, K]."""
    rest = Observed.of(transition, potentials, lengths)
    problem = Problem.of(prior.probs, transition.whole, potentials.table, rest)
    norms, alphas, last = run_forward(problem, keep=True)
    logs = log_norms(problem, norms)
    entry, moves, visits = run_adjoint(problem, norms, alphas, possible(logs), np.zeros_like(problem.prior))
    moves *= problem.matrix
    starts = from_numpy(entry * problem.prior)
    return reference.Expected(
        logs, Belief(from_numpy(last)), from_numpy(entry), starts, from_numpy(moves), from_numpy(visits)
    )  # fmt: skip
