"""The functions of reference.py for blocks [B, T-1, k, k] on a GPU, using `trellis.kernels.scan.triton`."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.engines import reference
from trellis.kernels.pairs.triton import gathered_product, summed_product, weighted
from trellis.kernels.rows import add_rows
from trellis.kernels.scan import resident
from trellis.kernels.scan.triton import Run, row_norms
from trellis.transitions import Blocks, ClassBlocks, LogitBlocks, SetBlocks, SplitBlocks
from trellis.types import Belief, Potentials


def operands(prior: Belief, transition: Blocks, potentials: Potentials, lengths: Tensor) -> tuple[Any, ...]:
    """The arguments of `Run` for this problem."""
    if isinstance(transition, SplitBlocks):
        norms = row_norms(transition.logits.detach()) - transition.entered
        return prior.probs, transition.logits, norms, potentials.gather(), lengths
    if isinstance(transition, LogitBlocks):
        return prior.probs, transition.logits, transition.log_norm, potentials.gather(), lengths
    return prior.probs, transition.matrix, None, potentials.gather(), lengths


def last_belief(prior: Tensor, alphas: Tensor, lengths: Tensor) -> Tensor:
    """The state distribution at each sequence's last step, or the prior if the sequence has no steps: [B, k]."""
    return reference.or_prior(reference.last_step(alphas, lengths), prior, lengths)


class Score(torch.autograd.Function):
    """log p(x_t | x_<t) [B, T] and the last state distribution [B, k], differentiable in every argument except the
    lengths. If `split` is true, the gradient of the logits includes the part that flows through the row normalisers."""

    @staticmethod
    def forward(
        ctx: Any, prior: Tensor, blocks: Tensor, log_norm: Tensor | None, weights: Tensor, lengths: Tensor, split: bool
    ) -> Any:
        ctx.split = split
        norms, alphas = Run(prior, blocks, log_norm, weights, lengths).forward()
        ctx.save_for_backward(prior, blocks, log_norm, weights, lengths, norms, alphas)
        return norms, last_belief(prior, alphas, lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        *given, norms, alphas = ctx.saved_tensors
        run = Run(*given)
        d_prior, d_weights, d_blocks, d_log_norm = run.adjoint(norms, alphas, grads[0], grads[1], True, ctx.split)
        return d_prior, d_blocks, d_log_norm if run.logits else None, d_weights, None, None


class SetScore(torch.autograd.Function):
    """Like `Score`, for blocks between G sets of n states. They are computed from queries and keys [G, n, d] and log
    normalisers [G, n]. The argument `k` is a copy of the keys in the precision of the products. The gradient with
    respect to the blocks is never stored."""

    @staticmethod
    def forward(
        ctx: Any, prior: Tensor, queries: Tensor, keys: Tensor, norms: Tensor, rows: Tensor, weights: Tensor,
        lengths: Tensor, k: Tensor,
    ) -> Any:  # fmt: skip
        prior, weights, lengths = prior.contiguous(), weights.contiguous(), lengths.contiguous()
        q, low = queries.to(k.dtype), k.dtype
        before, after = (steps.flatten().contiguous() for steps in (rows[:, :-1], rows[:, 1:]))
        blocks = gathered_product(q, k.mT, before, after, low, low, norms.contiguous())
        log_norms, alphas, last = resident.forward(prior, blocks, weights, lengths)
        ctx.save_for_backward(q, k, rows, before, after, blocks, weights, lengths, log_norms, alphas)
        ctx.dtypes = queries.dtype, keys.dtype
        return log_norms, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, rows, before, after, *problem = ctx.saved_tensors
        d_prior, d_weights, pulls, leaving = resident.adjoint(*problem, *(grad.contiguous() for grad in grads))
        moves = weighted(problem[0], problem[-1], pulls[:, 1:])
        d_queries = summed_product(moves, k, after, before, len(q), ctx.dtypes[0])
        d_keys = summed_product(moves.mT, q, before, after, len(k), ctx.dtypes[1])
        d_norms = -add_rows(leaving.flatten(0, 1), rows.flatten(), len(q))
        return d_prior, d_queries, d_keys, d_norms, None, d_weights, None, None


def score_sets(prior: Belief, transition: SetBlocks, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """Like `score`, for `SetBlocks`; the blocks are stored in the precision of the products."""
    by_set = transition.queries, transition.keys, transition.norms, transition.rows
    norms, last = SetScore.apply(prior.probs, *by_set, potentials.gather(), lengths, transition.low)
    return norms, Belief(last)


def score(prior: Belief, transition: Blocks, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] and the last state distribution; differentiable."""
    if (
        isinstance(transition, SetBlocks)
        and transition.dtype is torch.bfloat16
        and resident.fits(transition.num_states)
    ):
        return score_sets(prior, transition, potentials, lengths)
    split = isinstance(transition, SplitBlocks)
    norms, last = Score.apply(*operands(prior, transition, potentials, lengths), split)
    return norms, Belief(last)


def filter(prior: Belief, transition: Blocks, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor, Belief]:
    """log p(x_t | x_<t) [B, T], p(z_t | x_<=t) [B, T, k] (zero in the padding) and the last state distribution."""
    norms, alphas = Run(*operands(prior, transition, potentials, lengths)).forward()
    return norms, alphas, Belief(last_belief(prior.probs, alphas, lengths))


def smooth(prior: Belief, transition: Blocks, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x) [B, T, k]."""
    run = Run(*operands(prior, transition, potentials, lengths))
    norms, alphas = run.forward()
    return norms, run.adjoint(norms, alphas, reference.possible(norms), None, pairs=False)[1]


def expect(prior: Belief, transition: Blocks, potentials: Potentials, lengths: Tensor) -> reference.Expected:
    """The expected statistics of EM."""
    run = Run(*operands(prior, transition, potentials, lengths))
    norms, alphas = run.forward()
    entry, posterior, moves, _ = run.adjoint(norms, alphas, reference.possible(norms), None, pairs=True)
    moves = moves if run.logits else moves.mul_(run.blocks)
    if isinstance(transition, ClassBlocks) and transition.groups.in_order:
        moves = transition.by_states(moves)
    outside = ~potentials.inside(lengths)
    visits = reference.add_rows(potentials._replace(rows=potentials.rows.masked_fill(outside, -1)), posterior)
    belief = Belief(last_belief(prior.probs, alphas, lengths))
    return reference.Expected(norms, belief, entry, entry * prior.probs, moves, visits)


viterbi, sample = reference.viterbi, reference.sample
