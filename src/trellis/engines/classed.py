"""Forward and expectation passes where the live states of each step are a class of consecutive states, on a CPU
(numba): blocks are read from the dense transition matrix. The other functions are those of compiled.py."""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor, from_numpy

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
    def of(cls, prior: Belief, transition: ClassBlocks, potentials: Potentials, lengths: Tensor) -> "Problem":
        rows, ends, weights = array(potentials.rows), array(lengths), array(potentials.table)
        check_rows(len(weights), rows, ends)
        scale = weights.max(-1)
        scale[scale == -np.inf] = 0
        begins = array(transition.begins)
        tail = np.exp(weights - scale[:, None]), rows, ends, scale
        return cls(array(prior.probs), array(transition.whole), begins, array(transition.groups.rows), *tail)

    def workers(self, copied: int = 0) -> int:
        """The number of threads; each should compute more numbers than the `copied` ones it adds up in the end."""
        numbers = math.prod(self.rows.shape) * self.prior.shape[1] ** 2
        return team.size(min(len(self.rows), 1 + numbers // max(THREAD_WORTH, copied)))


def run_forward(problem: Problem, keep: bool) -> tuple[Array, Array, Array]:
    """c_t [B, T], a_t [B, T, k] (only the last step unless `keep`), and the last a_t [B, k]."""
    (batch, steps), live, dtype = problem.rows.shape, problem.prior.shape[1], problem.table.dtype
    norms, last = np.ones((batch, steps), dtype), problem.prior.copy()
    alphas = np.zeros((batch, steps if keep else 1, live), dtype)
    team.share(classes.forward, problem.workers(), *problem[:7], alphas, norms, last)
    return norms, alphas, last


def log_norms(problem: Problem, norms: Array) -> Tensor:
    """log c_t with the scales restored: [B, T]."""
    logs = np.empty_like(norms)
    share_log(0, 1, norms, logs)
    serial.add_scales(0, 1, problem.scale, problem.rows, problem.lengths, logs)
    return from_numpy(logs)


def score(
    prior: Belief, transition: ClassBlocks, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Belief]:  # fmt: skip
    """log c_t [B, T] and the last a_t; not differentiable."""
    problem = Problem.of(prior, transition, potentials, lengths)
    norms, _, last = run_forward(problem, keep=False)
    return log_norms(problem, norms), Belief(from_numpy(last))


def expect(
    prior: Belief, transition: ClassBlocks, potentials: Potentials, lengths: Tensor
) -> reference.Expected:  # fmt: skip
    """The expected statistics of EM; those of the transitions are of all states, [K, K]."""
    problem = Problem.of(prior, transition, potentials, lengths)
    norms, alphas, last = run_forward(problem, keep=True)
    logs = log_norms(problem, norms)
    workers, dtype = problem.workers(problem.matrix.size), problem.table.dtype
    entry = np.zeros_like(problem.prior)
    d_matrix = np.zeros((workers, *problem.matrix.shape), dtype)
    d_table = np.zeros((workers, *problem.table.shape), dtype)
    passed = norms, alphas, possible(logs), entry, d_matrix, d_table
    team.share(classes.adjoint, workers, *problem[1:7], *passed)
    moves = total(d_matrix, dtype)
    moves *= problem.matrix
    starts = from_numpy(entry * problem.prior)
    visits = from_numpy(total(d_table, dtype))
    return reference.Expected(
        logs, Belief(from_numpy(last)), from_numpy(entry), starts, from_numpy(moves), visits
    )  # fmt: skip
