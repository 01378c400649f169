"""The functions of naive.py for dense transitions on a CPU, compiled by numba: zero-copy views, explicit backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.kernels import team
from trellis.kernels.scan import lanes, naive, serial
from trellis.operators import Dense
from trellis.types import Belief, Potentials

Array = np.ndarray[Any, Any]
LANES_FROM = 16  # from this many sequences on, lanes beat one sequence at a time


class Problem(NamedTuple):
    """Everything the compiled functions read, as arrays."""

    prior: Array  # [B, K]
    matrices: Array  # [M, K, K]
    strides: tuple[int, int]  # sequence b, step t uses matrix b * strides[0] + t * strides[1]
    table: Array  # [N, K]: potentials, scaled to a maximum of one
    scale: Tensor  # [N]: log of what was taken out of each row
    rows: Array  # [B, T], -1 past the end
    lengths: Array  # [B]

    @property
    def wide(self) -> bool:
        return len(self.matrices) == 1 and len(self.rows) >= LANES_FROM

    @property
    def workers(self) -> int:
        return team.size(-(-len(self.rows) // lanes.LANES) if self.wide else len(self.rows))

    def blas(self) -> AbstractContextManager[Any]:
        """Where library products are used, each worker has one thread for them."""
        library = self.wide and self.prior.shape[1] >= lanes.BLAS_FROM
        return team.one_blas_thread() if library else nullcontext()


def pose(prior: Tensor, matrix: Tensor, table: Tensor, rows: Tensor, lengths: Tensor) -> Problem:
    """Arrays out of tensors; the exponential is taken here, once per row of the table."""
    check(rows.shape, table.shape[1], lengths, matrix, prior)
    observed = known_rows(table, rows, lengths)
    scale = table.amax(-1)
    scale = scale.masked_fill(scale == -torch.inf, 0.0)
    weights = (table - scale.unsqueeze(-1)).exp_()
    matrices, strides = stack(matrix)
    return Problem(array(prior), array(matrices), strides, array(weights), scale, observed, array(lengths))


def check(shape: torch.Size, states: int, lengths: Tensor, matrix: Tensor, prior: Tensor) -> None:
    """Refuse whatever compiled code would read out of bounds; `shape` is that of the rows, [B, T]."""
    batch, steps = shape
    leading = {2: (), 3: (steps - 1,)}.get(matrix.dim(), (batch, steps - 1))
    wanted = {"transition": (*leading, states, states), "prior": (batch, states), "lengths": (batch,)}
    given = {"transition": matrix, "prior": prior, "lengths": lengths}
    for name, size in wanted.items():
        if given[name].shape != size:
            raise TrellisError(
                f"The {name} of {batch} sequences of {steps} steps over {states} states must have the shape "
                f"{list(size)}, not {list(given[name].shape)}."
            )
    wrong = (lengths < 0) | (lengths > steps)
    if bool(wrong.any()):
        found = int(lengths[wrong][0])
        raise TrellisError(f"Lengths must lie between 0 and the {steps} steps of the batch; found {found}.")


def known_rows(table: Tensor, rows: Tensor, lengths: Tensor) -> Array:
    """The rows with -1 past the end, each of them a row of the table."""
    inside = torch.arange(rows.shape[1]) < lengths[:, None]
    known = rows.masked_fill(~inside, -1)
    if bool((known >= len(table)).any()):
        raise TrellisError(
            f"Token {int(known.max())} is outside the vocabulary of {len(table)}; encode the text with the model's own."
        )
    return array(known)


def stack(matrix: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """All matrices in one stack [M, K, K], and how its index grows with sequence and step."""
    strides = {2: (0, 0), 3: (0, 1)}.get(matrix.dim(), (matrix.shape[1], 1))
    return matrix.reshape(-1, *matrix.shape[-2:]), strides


def array(tensor: Tensor) -> Array:
    return tensor.detach().contiguous().numpy()


def run_forward(problem: Problem, keep: bool) -> tuple[Array, Array, Array]:
    """c_t [B, T], a_t in the engine's own layout (of the last step alone unless `keep`), and the last a_t [B, K]."""
    batch, steps = problem.rows.shape
    states = problem.prior.shape[1]
    norms, last = np.ones((batch, steps), problem.table.dtype), problem.prior.copy()
    kept = steps if keep else 1
    with problem.blas():
        if problem.wide:
            blocks = -(-batch // lanes.LANES)
            alphas = np.empty((blocks, states, kept, lanes.LANES), problem.table.dtype)
            transposed = np.ascontiguousarray(problem.matrices[0].T)
            tail = (problem.table, problem.rows, problem.lengths, alphas, norms, last)
            team.share(lanes.forward, problem.workers, problem.prior, transposed, *tail)
        else:
            alphas = np.empty((batch, kept, states), problem.table.dtype)
            tail = (problem.table, problem.rows, problem.lengths, alphas, norms, last)
            team.share(serial.forward, problem.workers, problem.prior, problem.matrices, *problem.strides, *tail)
    return norms, alphas, last


class Gradient(NamedTuple):
    """dL/dprior [B, K], dL/dA (like the matrices), dL/dlog table [N, K], and a_t b_t [B, T, K] where asked for."""

    prior: Array
    matrices: Array
    table: Array
    posterior: Array


def run_adjoint(
    problem: Problem,
    norms: Array,
    alphas: Array,
    weights: Array,
    last_grad: Array | None = None,
    posterior: bool = False,
) -> Gradient:
    """The backward pass for L = sum_t weights_t log c_t + <last_grad, last belief>."""
    dtype, (batch, steps), states = problem.table.dtype, problem.rows.shape, problem.prior.shape[1]
    d_prior = np.zeros((batch, states), dtype) if last_grad is None else last_grad.copy()
    out = np.zeros((batch, steps, states) if posterior else (0, 0, 0), dtype)
    workers, shared = problem.workers, problem.strides[0] == 0
    d_matrices = np.zeros((workers if shared else 1, *problem.matrices.shape), dtype)
    d_table = np.zeros((workers, *problem.table.shape), dtype)
    head = (problem.table, problem.rows, problem.lengths, norms, alphas, weights, d_prior)
    with problem.blas():
        if problem.wide:
            team.share(lanes.adjoint, workers, problem.matrices[0], *head, d_matrices[:, 0], d_table, out)
        else:
            matrices = (problem.matrices, *problem.strides)
            team.share(serial.adjoint, workers, *matrices, *head, d_matrices, d_table, out)
    return Gradient(d_prior, d_matrices.sum(0), d_table.sum(0) if workers > 1 else d_table[0], out)


def log_norms(problem: Problem, norms: Array) -> Tensor:
    """log c_t with the scales put back: [B, T], zero past the end and -inf where impossible."""
    rows = torch.from_numpy(problem.rows)
    scales = problem.scale[rows.clamp(min=0)].masked_fill(rows < 0, 0.0)
    return torch.from_numpy(norms).log() + scales


class Score(torch.autograd.Function):
    """(log c_t [B, T], last belief [B, K]) as a differentiable function of prior, matrix and log table."""

    @staticmethod
    def forward(ctx: Any, prior: Tensor, matrix: Tensor, table: Tensor, rows: Tensor, lengths: Tensor) -> Any:
        problem = pose(prior, matrix, table, rows, lengths)
        norms, alphas, last = run_forward(problem, keep=any(ctx.needs_input_grad))
        ctx.problem, ctx.norms, ctx.alphas, ctx.matrix_shape = problem, norms, alphas, matrix.shape
        return log_norms(problem, norms), torch.from_numpy(last)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        weights, last_grad = grads
        gradient = run_adjoint(ctx.problem, ctx.norms, ctx.alphas, array(weights), array(last_grad))
        d_matrix = torch.from_numpy(gradient.matrices).view(ctx.matrix_shape)
        return torch.from_numpy(gradient.prior), d_matrix, torch.from_numpy(gradient.table), None, None


def score(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log c_t [B, T] and the last belief; differentiable."""
    norms, last = Score.apply(prior.probs, transition.matrix, potentials.table, potentials.rows, lengths)
    return norms, Belief(last)


def standard(problem: Problem, alphas: Array) -> Tensor:
    """a_t as [B, T, K]."""
    if not problem.wide:
        return torch.from_numpy(alphas)
    batch, steps = problem.rows.shape
    return torch.from_numpy(alphas.transpose(0, 3, 2, 1).reshape(-1, steps, alphas.shape[1])[:batch])


def filter(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor, Belief]:
    """log c_t [B, T], a_t [B, T, K] (zero past the end) and the last belief."""
    problem = pose(prior.probs, transition.matrix, potentials.table, potentials.rows, lengths)
    norms, alphas, last = run_forward(problem, keep=True)
    probs = standard(problem, alphas).masked_fill_(~potentials.inside(lengths).unsqueeze(-1), 0.0)
    return log_norms(problem, norms), probs, Belief(torch.from_numpy(last))


def smooth(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log c_t [B, T] and p(z_t | x) [B, T, K]."""
    problem = pose(prior.probs, transition.matrix, potentials.table, potentials.rows, lengths)
    norms, alphas, _ = run_forward(problem, keep=True)
    logs = log_norms(problem, norms)
    gradient = run_adjoint(problem, norms, alphas, array(naive.possible(logs)), posterior=True)
    return logs, torch.from_numpy(gradient.posterior)


def expect(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> naive.Expected:
    """The expected statistics of EM."""
    problem = pose(prior.probs, transition.matrix, potentials.table, potentials.rows, lengths)
    norms, alphas, last = run_forward(problem, keep=True)
    logs = log_norms(problem, norms)
    gradient = run_adjoint(problem, norms, alphas, array(naive.possible(logs)))
    moves = torch.from_numpy(problem.matrices * gradient.matrices).view(transition.matrix.shape)
    entry, visits = torch.from_numpy(gradient.prior), torch.from_numpy(gradient.table)
    return naive.Expected(logs, Belief(torch.from_numpy(last)), entry, moves, visits)


def mode(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable path [B, T] (-1 past the end) and its log-probability [B]."""
    check(potentials.rows.shape, potentials.table.shape[1], lengths, transition.matrix, prior.probs)
    batch, steps = potentials.rows.shape
    log_matrices, strides = stack(transition.matrix.log())
    known = known_rows(potentials.table, potentials.rows, lengths)
    tail = (array(potentials.table), known, array(lengths))
    path, scores = np.full((batch, steps), -1, np.int64), np.zeros(batch)
    log_prior = array(prior.probs.log())
    if len(log_matrices) == 1 and batch >= LANES_FROM:
        workers = team.size(-(-batch // lanes.LANES))
        team.share(lanes.mode, workers, log_prior, array(log_matrices[0]), *tail, path, scores)
    else:
        team.share(serial.mode, team.size(batch), log_prior, array(log_matrices), *strides, *tail, path, scores)
    return torch.from_numpy(path), torch.from_numpy(scores).to(potentials.table.dtype)


def sample(transition: Dense, filtered: Tensor, lengths: Tensor, uniform: Tensor) -> Tensor:
    """Paths from p(z | x) given a_t [B, T, K]: -> [B, T], -1 past the end."""
    check(uniform.shape, filtered.shape[2], lengths, transition.matrix, filtered[:, 0])
    matrices, strides = stack(transition.matrix)
    path = np.full(filtered.shape[:2], -1, np.int64)
    tail = (array(filtered), array(lengths), array(uniform), path)
    team.share(serial.sample, team.size(len(path)), array(matrices), *strides, *tail)
    return torch.from_numpy(path)
