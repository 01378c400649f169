"""The functions of reference.py for dense transitions on a CPU, compiled by numba. reference.py defines a_t and c_t."""

import math
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.engines import reference
from trellis.engines.arrays import Array, array, check, check_rows, log
from trellis.kernels import team
from trellis.kernels.scan import blocks, lanes, serial
from trellis.transitions import Blocks, Dense, PairBlocks
from trellis.types import Belief, Potentials

LANES_FROM = 16  # from this many sequences on, computing many at once is faster
BLOCKS_FROM = 32  # from this many states on, vectorising over states is faster than over sequences
BLOCK_SIZE = 128  # maximum sequences per block
THREAD_WORTH = 200_000  # multiplications for which it is worth waking a thread


class Problem(NamedTuple):
    """The inputs of the compiled functions, as arrays."""

    prior: Array  # [B, K]
    matrices: Array  # [M, K, K]
    numbers: Array  # [B, T-1]: the index of the matrix of each step
    table: Array  # [N, K]: potentials, scaled to a maximum of one
    scale: Array  # [N]: log of the factor removed from each row
    rows: Array  # [B, T]
    lengths: Array  # [B]
    pairs: bool = False  # whether the matrices are the blocks of a `PairBlocks`

    @property
    def layout(self) -> ModuleType:
        """The module of kernels for a problem of this size."""
        if len(self.matrices) != 1 or len(self.rows) < LANES_FROM:
            return serial
        return lanes if self.prior.shape[1] < BLOCKS_FROM else blocks

    @property
    def operands(self) -> tuple[Any, ...]:
        return (self.matrices, self.numbers) if self.layout is serial else (self.matrices[0],)

    @property
    def observed(self) -> tuple[Array, Array, Array]:
        return self.table, self.rows, self.lengths

    def blas(self) -> AbstractContextManager[Any]:
        """Limit each worker to one BLAS thread if BLAS products are used."""
        return nullcontext() if self.layout is serial else team.OneBlasThread()


def as_problem(
    prior: Tensor, matrix: Tensor, numbers: Tensor | None, table: Tensor, rows: Tensor, lengths: Tensor
) -> Problem:
    """Convert tensors to arrays, exponentiating each row of the table once."""
    places, ends = array(rows), array(lengths)
    check(rows.shape, table.shape[1], ends, matrix.shape if numbers is None else matrix.shape[1:], prior.shape)
    check_rows(len(table), places, ends)
    weights = array(table)
    scale = weights.max(-1)
    scale[scale == -np.inf] = 0
    tail = np.exp(weights - scale[:, None]), scale, places, ends
    return Problem(array(prior), *stack(matrix, numbers, rows.shape), *tail, pairs=numbers is not None)


def share_log(worker: int, workers: int, values: Array, out: Array) -> None:
    log(values[worker::workers], out[worker::workers])


def matrices_of(transition: Dense | Blocks) -> tuple[Tensor, Tensor | None]:
    """The matrices of a transition and, for a `PairBlocks`, the index of each step's matrix [B, T-1]."""
    return (transition.pairs, transition.numbers) if isinstance(transition, PairBlocks) else (transition.matrix, None)


def stack(matrix: Tensor, numbers: Tensor | None, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """All matrices in one stack [M, K, K], and the index of each step's matrix [B, T-1]."""
    matrices = array(matrix.reshape(-1, *matrix.shape[-2:]))
    if numbers is not None:
        return matrices, array(numbers)
    index = np.arange(len(matrices)).reshape({2: (1, 1), 3: (1, -1)}.get(matrix.dim(), (shape[0], -1)))
    return matrices, np.ascontiguousarray(np.broadcast_to(index, (shape[0], max(shape[1] - 1, 0))))


def num_threads(units: int, shape: tuple[int, ...], states: int) -> int:
    """The number of threads for a batch of shape [B, T] that is split into `units`: one if there is little work."""
    return team.size(min(units, 1 + math.prod(shape) * states**2 // THREAD_WORTH))


def alphas_shape(problem: Problem, kept: int) -> tuple[int, ...]:
    """The shape in which the kernels store p(z_t | x_<=t) for `kept` steps. `standard` converts to [B, T, K]."""
    batch, states = problem.prior.shape
    size = min(BLOCK_SIZE, -(-batch // num_threads(batch, problem.rows.shape, states)))
    return {
        serial: (batch, kept, states),
        lanes: (-(-batch // lanes.LANES), kept, states, lanes.LANES),
        blocks: (-(-batch // size), kept, size, states),
    }[problem.layout]


def standard(problem: Problem, alphas: Array) -> Tensor:
    """Convert p(z_t | x_<=t) from the layout of the kernels to [B, T, K]."""
    if problem.layout is serial:
        return torch.from_numpy(alphas)
    packed = alphas.swapaxes(2, 3) if problem.layout is lanes else alphas
    out = np.empty((*problem.rows.shape, problem.prior.shape[1]), alphas.dtype)
    team.share(lanes.unpack, num_threads(len(alphas), out.shape, 1), packed, out)
    return torch.from_numpy(out)


def run_forward(problem: Problem, keep: bool) -> tuple[Array, Array, Array]:
    """The forward pass: c_t [B, T] for the scaled potentials, a_t in the layout of the kernels (only the last step
    unless `keep`), and the last state distribution [B, K]."""
    dtype, (batch, steps), states = problem.table.dtype, problem.rows.shape, problem.prior.shape[1]
    norms, last = np.ones((batch, steps), dtype), problem.prior.copy()
    alphas = np.zeros(alphas_shape(problem, steps if keep else 1), dtype)
    workers = num_threads(len(alphas), problem.rows.shape, states)
    arguments = problem.prior, *problem.operands, *problem.observed, alphas, norms, last
    with problem.blas():
        team.share(problem.layout.forward, workers, *arguments)
    return norms, alphas, last


class Gradient(NamedTuple):
    """The gradients of a loss L: dL/dprior [B, K], dL/dA (shaped like the matrices A) and dL/dlog table [N, K]."""

    prior: Array
    matrices: Array
    table: Array


def run_adjoint(
    problem: Problem,
    norms: Array,
    alphas: Array,
    weights: Array,
    last_grad: Array | None = None,
    smoothing: bool = False,
) -> Gradient:
    """The backward pass: the gradients of L = sum_t weights_t log c_t + <last_grad, last state distribution>.

    If `smoothing` is true, `alphas` is overwritten with the posteriors p(z_t | x), and only the gradient with respect
    to the prior is computed."""
    dtype, states = problem.table.dtype, problem.prior.shape[1]
    d_prior = np.zeros_like(problem.prior) if last_grad is None else last_grad.copy()
    workers = num_threads(len(alphas), problem.rows.shape, states)
    own = not problem.pairs and 1 < len(problem.matrices) == problem.numbers.size  # each is used once
    copies = 1 if own else workers
    long = problem.layout is serial and not problem.pairs
    added = np.dtype(np.float64) if long else dtype  # float32 is too coarse for a long text
    d_matrices = np.zeros((copies, 1, 0, 0) if smoothing else (copies, *problem.matrices.shape), added)
    d_table = np.zeros((workers, 0, 0) if smoothing else (workers, *problem.table.shape), added)
    passed = norms, alphas, weights, smoothing, d_prior, d_matrices, d_table
    with problem.blas():
        team.share(problem.layout.adjoint, workers, *problem.operands, *problem.observed, *passed)
    return Gradient(d_prior, total(d_matrices, dtype), total(d_table, dtype))


def total(parts: Array, dtype: np.dtype[Any]) -> Array:
    """The sum of the workers' results."""
    return (parts.sum(0) if len(parts) > 1 else parts[0]).astype(dtype, copy=False)


def log_norms(problem: Problem, norms: Array) -> Tensor:
    """log p(x_t | x_<t), with the scales restored: [B, T], zero in the padding and -inf where impossible."""
    logs = np.empty_like(norms)
    workers = num_threads(len(norms), norms.shape, 1)
    team.share(share_log, workers, norms, logs)
    team.share(serial.add_scales, workers, problem.scale, problem.rows, problem.lengths, logs)
    return torch.from_numpy(logs)


def possible(logs: Tensor) -> Array:
    """1 at every step of a sequence with positive probability, 0 at every step of the other sequences: [B, T]."""
    weights = np.empty(logs.shape, logs.numpy().dtype)
    weights[:] = (logs.numpy().min(1, initial=0.0) > -np.inf)[:, None]
    return weights


class Score(torch.autograd.Function):
    """log p(x_t | x_<t) [B, T] and the last state distribution, differentiable in prior, matrix and log table."""

    @staticmethod
    def forward(
        ctx: Any, prior: Tensor, matrix: Tensor, numbers: Tensor | None, table: Tensor, rows: Tensor, lengths: Tensor
    ) -> Any:
        problem = as_problem(prior, matrix, numbers, table, rows, lengths)
        norms, alphas, last = run_forward(problem, keep=any(ctx.needs_input_grad))
        ctx.problem, ctx.norms, ctx.alphas, ctx.matrix_shape = problem, norms, alphas, matrix.shape
        return log_norms(problem, norms), torch.from_numpy(last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        weights, last_grad = grads
        gradient = run_adjoint(ctx.problem, ctx.norms, ctx.alphas, array(weights), array(last_grad))
        d_matrix = torch.from_numpy(gradient.matrices).view(ctx.matrix_shape)
        return torch.from_numpy(gradient.prior), d_matrix, None, torch.from_numpy(gradient.table), None, None


def score(prior: Belief, transition: Dense | Blocks, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] and the last state distribution; differentiable."""
    norms, last = Score.apply(prior.probs, *matrices_of(transition), potentials.table, potentials.rows, lengths)
    return norms, Belief(last)


def filter(
    prior: Belief, transition: Dense | Blocks, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Tensor, Belief]:
    """log p(x_t | x_<t) [B, T], p(z_t | x_<=t) [B, T, K] (zero in the padding) and the last state distribution."""
    problem = as_problem(prior.probs, *matrices_of(transition), potentials.table, potentials.rows, lengths)
    norms, alphas, last = run_forward(problem, keep=True)
    return log_norms(problem, norms), standard(problem, alphas), Belief(torch.from_numpy(last))


def smooth(prior: Belief, transition: Dense | Blocks, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x) [B, T, K]."""
    problem = as_problem(prior.probs, *matrices_of(transition), potentials.table, potentials.rows, lengths)
    norms, alphas, _ = run_forward(problem, keep=True)
    logs = log_norms(problem, norms)
    run_adjoint(problem, norms, alphas, possible(logs), smoothing=True)
    return logs, standard(problem, alphas)


def expect(prior: Belief, transition: Dense | Blocks, potentials: Potentials, lengths: Tensor) -> reference.Expected:
    """The expected statistics of EM."""
    problem = as_problem(prior.probs, transition.matrix, None, potentials.table, potentials.rows, lengths)
    norms, alphas, last = run_forward(problem, keep=True)
    logs = log_norms(problem, norms)
    gradient = run_adjoint(problem, norms, alphas, possible(logs))
    moves = torch.from_numpy(problem.matrices * gradient.matrices).view(transition.matrix.shape)
    entry, visits = torch.from_numpy(gradient.prior), torch.from_numpy(gradient.table)
    return reference.Expected(logs, Belief(torch.from_numpy(last)), entry, entry * prior.probs, moves, visits)


def viterbi(
    prior: Belief, transition: Dense | Blocks, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The Viterbi path [B, T] (-1 in the padding) and its log-probability [B]."""
    table, rows, ends = array(potentials.table), array(potentials.rows), array(lengths)
    check(rows.shape, table.shape[1], ends, transition.matrix.shape, prior.probs.shape)
    check_rows(len(table), rows, ends)
    batch, steps = rows.shape
    matrices, numbers = stack(transition.matrix, None, rows.shape)
    log_prior, log_matrices = log(array(prior.probs)), log(matrices)
    tail = table, rows, ends
    path, scores = np.full((batch, steps), -1, np.int64), np.zeros(batch)
    if len(log_matrices) == 1 and batch >= LANES_FROM:
        workers = num_threads(-(-batch // lanes.LANES), path.shape, transition.num_states)
        team.share(lanes.viterbi, workers, log_prior, log_matrices[0], *tail, path, scores)
    else:
        workers = num_threads(batch, path.shape, transition.num_states)
        team.share(serial.viterbi, workers, log_prior, log_matrices, numbers, *tail, path, scores)
    return torch.from_numpy(path), torch.from_numpy(scores).to(potentials.table.dtype)


def sample(transition: Dense | Blocks, filtered: Tensor, lengths: Tensor, uniform: Tensor) -> Tensor:
    """Sample paths [B, T] from p(z | x), given p(z_t | x_<=t) [B, T, K] and uniform numbers; -1 in the padding."""
    ends, first = array(lengths), filtered[:, 0]
    check(uniform.shape, filtered.shape[2], ends, transition.matrix.shape, first.shape)
    matrices, numbers = stack(transition.matrix, None, uniform.shape)
    path = np.full(filtered.shape[:2], -1, np.int64)
    tail = (array(filtered), ends, array(uniform), path)
    workers = num_threads(len(path), path.shape, transition.num_states)
    team.share(serial.sample, workers, matrices, numbers, *tail)
    return torch.from_numpy(path)
