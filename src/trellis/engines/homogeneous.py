"""The functions of reference.py for homogeneous transitions with all states live. The transition is applied step by
step; everything else, including the gradient of the transitions, is computed for all steps at once.

See reference.py for the recursions. Arrays are time-major, [T, B, K], so that each step is contiguous.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.engines import reference
from trellis.transitions import Countable, Transition
from trellis.types import Belief, Potentials


class Run:
    """The forward and backward passes of one problem, without gradients."""

    def __init__(self, prior: Tensor, transition: Transition, log_weights: Tensor, lengths: Tensor) -> None:
        self.transition, self.lengths = transition, lengths
        steps = torch.arange(len(log_weights), device=lengths.device).unsqueeze(-1)
        self.inside = (steps < lengths).to(log_weights.dtype).unsqueeze(-1)  # [T, B, 1]
        scale = log_weights.amax(-1, keepdim=True)
        scale = scale.masked_fill(scale == -torch.inf, 0.0)
        self.weights = (log_weights - scale).exp()
        self.filtered, self.norms = torch.empty_like(self.weights), torch.empty_like(scale)
        smallest = torch.finfo(scale.dtype).tiny
        for t, weight in enumerate(self.weights):
            joint = (prior if t == 0 else transition.forward(self.filtered[t - 1])) * weight
            norm = torch.sum(joint, -1, keepdim=True, out=self.norms[t])
            torch.div(joint, torch.threshold_(norm, smallest, torch.inf), out=self.filtered[t])
        log_norms = (self.norms.log() + scale).masked_fill(self.norms == torch.inf, -torch.inf)
        self.log_norms = log_norms.masked_fill(self.inside == 0, 0.0).squeeze(-1).T.contiguous()  # [B, T]

    def last(self) -> Tensor:
        """The state distribution at each sequence's last step: [B, K]."""
        return reference.last_step(self.filtered.transpose(0, 1), self.lengths)

    def adjoint(self, grads: Tensor, last: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The backward recursion of reference.py: a_t b_t and w_t [T, B, K], given g [B, T] (`grads`) and the gradient
        [B, K] with respect to the last a_t (`last`)."""
        futures, pulls = torch.empty_like(self.filtered), self.weights * (self.inside / self.norms)
        grads = grads.T.unsqueeze(-1) * self.inside
        message = torch.zeros_like(pulls[0])
        for t in reversed(range(len(pulls))):
            if last is not None:
                message = message + last * (self.lengths - 1 == t).unsqueeze(-1)
            shift = grads[t] - (message * self.filtered[t]).sum(-1, keepdim=True)
            pulls[t] *= torch.add(message, shift, out=futures[t])
            if t > 0:
                message = self.transition.backward(pulls[t])
        return self.filtered * futures * self.inside, pulls


class Score(torch.autograd.Function):
    """log p(x_t | x_<t) [B, T] and the last state distribution [B, K] of a `Run`. They are differentiable in the prior
    [B, K], the predictions p(z_t | x_<t) [B, T-1, K] and the log-potentials [T, B, K]."""

    @staticmethod
    def forward(ctx: Any, prior: Tensor, predicted: Tensor, log_weights: Tensor, run: Run) -> Any:
        ctx.run = run
        ctx.set_materialize_grads(False)
        return run.log_norms.clone(), run.last()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        norms = torch.zeros_like(ctx.run.log_norms) if grads[0] is None else grads[0]
        posterior, pulls = ctx.run.adjoint(norms, grads[1])
        return pulls[0], pulls[1:].transpose(0, 1), posterior, None


def time_major(prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The prior [B, K], and the time-major log-potentials: [T, B, K]."""
    rows = potentials.rows if potentials.all_observed else potentials.rows.masked_fill(~potentials.inside(lengths), -1)
    return reference.first_step(prior, None, transition.num_states), potentials._replace(rows=rows.T).gather()


def score(prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] and the last state distribution; differentiable."""
    begin, log_weights = time_major(prior, transition, potentials, lengths)
    with torch.no_grad():
        run = Run(begin, transition, log_weights, lengths)
    if not torch.is_grad_enabled():
        return run.log_norms, Belief(reference.or_prior(run.last(), begin, lengths))
    before = run.filtered[:-1].transpose(0, 1)
    predicted = transition.forward(before) if before.numel() else before
    log_norms, last = Score.apply(begin, predicted, log_weights, run)
    return log_norms, Belief(reference.or_prior(last, begin, lengths))


def filter(
    prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Tensor, Belief]:
    """log p(x_t | x_<t) [B, T], p(z_t | x_<=t) [B, T, K] (zero in the padding) and the last state distribution."""
    if torch.is_grad_enabled():
        return reference.filter(prior, transition, potentials, lengths)
    begin, log_weights = time_major(prior, transition, potentials, lengths)
    run = Run(begin, transition, log_weights, lengths)
    belief = Belief(reference.or_prior(run.last(), begin, lengths))
    return run.log_norms, (run.filtered * run.inside).transpose(0, 1), belief


def smooth(prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x) [B, T, K]."""
    if torch.is_grad_enabled():
        return reference.smooth(prior, transition, potentials, lengths)
    begin, log_weights = time_major(prior, transition, potentials, lengths)
    run = Run(begin, transition, log_weights, lengths)
    return run.log_norms, run.adjoint(reference.possible(run.log_norms))[0].transpose(0, 1)


@torch.no_grad()
def expect(prior: Belief, transition: Countable, potentials: Potentials, lengths: Tensor) -> reference.Expected:
    """The expected statistics of EM."""
    begin, log_weights = time_major(prior, transition, potentials, lengths)
    run = Run(begin, transition, log_weights, lengths)
    posterior, pulls = (found.transpose(0, 1) for found in run.adjoint(reference.possible(run.log_norms)))
    rows = potentials.rows.masked_fill(~potentials.inside(lengths), -1)
    visits = reference.add_rows(potentials._replace(rows=rows), posterior)
    moves = transition.expected(run.filtered[:-1].transpose(0, 1), pulls[:, 1:])
    belief = Belief(reference.or_prior(run.last(), begin, lengths))
    return reference.Expected(run.log_norms, belief, pulls[:, 0], pulls[:, 0] * begin, moves, visits)


viterbi, sample = reference.viterbi, reference.sample
