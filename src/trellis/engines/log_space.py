"""The engine for sequences that underflow in scaled arithmetic. The forward pass is in log space; posteriors and
expected counts are its gradients.

Scaled values are all zero if, for example, the only reachable state is exp(1000) times less likely than another. The
sequence then looks impossible. This engine is slow: it uses float64 and a dense matrix.
"""

import torch
from torch import Tensor

from trellis.engines.reference import AnyTransition, Expected, add_rows, last_step, or_prior
from trellis.transitions import ClassBlocks, Countable, Dense, Stacked, TimeVarying
from trellis.transitions.base import invert, select
from trellis.types import Belief, Potentials

FLOOR = -1e300  # replaces -inf, so that differences are finite
IMPOSSIBLE = -1e299  # a sum below this contains a FLOOR
WIDE = {torch.float32: 60.0, torch.float64: 600.0}  # differences between states, in nats, at which underflow is likely
LARGEST = 1 << 24  # maximum entries of a dense transition matrix
CHEAP, SHORT = 1 << 20, 1 << 10  # exponentials and steps up to which recomputing is always tried
MOST = 1 << 28  # maximum exponentials, even if underflow is likely


def may_help(transition: AnyTransition, potentials: Potentials, sequences: Tensor | int) -> bool:
    """Whether to recompute sequences that look impossible: if recomputing is cheap, or underflow is likely.

    Underflow is likely if an observation and two transitions can separate states by more than the range of the
    numbers."""
    written = isinstance(transition, TimeVarying) or transition.num_states**2 <= LARGEST
    if not written or isinstance(transition, Stacked):  # sequences are assigned to stacked chains by position
        return False
    steps = potentials.rows.shape[1]
    work = int(sequences) * steps * transition.num_states**2
    if work > MOST or (steps <= SHORT and work <= CHEAP):
        return work <= MOST
    table = potentials.table
    spans = table.amax(-1) - table.masked_fill(table == -torch.inf, torch.inf).amin(-1)
    return bool((spans - 2 * smallest_move(transition) > WIDE.get(table.dtype, 0.0)).any())


def smallest_move(transition: AnyTransition) -> Tensor | float:
    """The logarithm of the smallest positive transition probability, or 0 for blocks that have not been computed."""
    if isinstance(transition, ClassBlocks):
        moves = transition.whole
    elif isinstance(transition, TimeVarying) and "matrix" not in vars(transition):
        return 0.0
    else:
        moves = transition.dense()
    return moves.masked_fill(moves <= 0, 1.0).amin().double().log() if moves.numel() else 0.0


def log(values: Tensor) -> Tensor:
    return values.double().log().clamp(min=FLOOR)


class Run:
    """The forward pass of one problem: log p(z_t, x_<=t), differentiable in the log-probabilities."""

    def __init__(
        self, prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor, learning: bool = False
    ) -> None:
        given = log(prior.probs), log(transition.dense()), potentials.gather().double().clamp(min=FLOOR)
        self.leaves = tuple(value.detach().requires_grad_(learning) for value in given)
        start, _, weights = self.leaves
        scores = [start + weights[:, 0]]
        for t in range(1, weights.shape[1]):
            onward = (scores[-1].unsqueeze(-1) + self.move(t - 1)).logsumexp(-2) + weights[:, t]
            scores.append(torch.where((t < lengths).unsqueeze(-1), onward, scores[-1]))
        self.scores, self.lengths, self.inside = torch.stack(scores, 1), lengths, potentials.inside(lengths)
        self.possible = self.scores[:, -1].logsumexp(-1) > IMPOSSIBLE

    def move(self, step: int) -> Tensor:
        """The log transition matrix between steps `step` and `step + 1`: [K, K], or [B, K, K]."""
        moves = self.leaves[1]
        return moves if moves.dim() == 2 else moves.select(-3, step)

    def log_norms(self) -> Tensor:
        """log p(x_t | x_<t): [B, T], zero in the padding and -inf from the first impossible step on."""
        evidence = self.scores.logsumexp(-1)
        norms = evidence.diff(dim=1, prepend=torch.zeros_like(evidence[:, :1]))
        return norms.masked_fill(evidence <= IMPOSSIBLE, -torch.inf).masked_fill(~self.inside, 0.0).detach()

    def filtered(self) -> Tensor:
        """p(z_t | x_<=t): [B, T, k]."""
        possible = self.scores.amax(-1, keepdim=True) > IMPOSSIBLE
        return (self.scores.softmax(-1) * (possible & self.inside.unsqueeze(-1))).detach()

    def belief(self, prior: Belief) -> Belief:
        """The state distribution after each sequence's last step."""
        probs = self.filtered().to(prior.probs.dtype)
        return Belief(or_prior(last_step(probs, self.lengths), prior.probs, self.lengths))

    def gradients(self) -> tuple[Tensor, ...]:
        """Expected starts [B, k], expected transitions (shaped like the matrix) and posteriors [B, T, k]. They are zero
        for impossible sequences."""
        total = self.scores[:, -1].logsumexp(-1)
        return torch.autograd.grad(
            (total * (self.possible & (self.lengths > 0))).sum(), self.leaves, allow_unused=True, materialize_grads=True
        )


@torch.no_grad()
def score(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] and the last state distribution."""
    run = Run(prior, transition, potentials, lengths)
    return run.log_norms(), run.belief(prior)


@torch.no_grad()
def filter(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Tensor, Belief]:
    """log p(x_t | x_<t) [B, T], p(z_t | x_<=t) [B, T, k] (zero in the padding) and the last state distribution."""
    run = Run(prior, transition, potentials, lengths)
    return run.log_norms(), run.filtered(), run.belief(prior)


@torch.enable_grad()
def smooth(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x) [B, T, k]."""
    run = Run(prior, transition, potentials, lengths, learning=True)
    return run.log_norms(), run.gradients()[2]


@torch.enable_grad()
def expect(prior: Belief, transition: Countable | TimeVarying, potentials: Potentials, lengths: Tensor) -> Expected:
    """The expected statistics of EM."""
    run = Run(prior, transition, potentials, lengths, learning=True)
    starts, moves, posteriors = (found.to(prior.probs.dtype) for found in run.gradients())
    if isinstance(transition, Countable) and not isinstance(transition, Dense):
        everything = torch.arange(transition.num_states, device=moves.device)
        moves = transition.collect(everything, everything, moves)
    inside = potentials._replace(rows=potentials.rows.masked_fill(~run.inside, -1))
    entry = starts / prior.probs.clamp(min=torch.finfo(prior.probs.dtype).tiny)
    return Expected(run.log_norms(), run.belief(prior), entry, starts, moves, add_rows(inside, posteriors))


@torch.no_grad()
def sample(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor, uniform: Tensor
) -> Tensor:
    """Sample paths [B, T] from p(z | x), given uniform numbers [B, T]; -1 in the padding."""
    run = Run(prior, transition, potentials, lengths)
    path = torch.full(uniform.shape, -1, dtype=torch.int64, device=uniform.device)
    for t in reversed(range(uniform.shape[1])):
        scores = run.scores[:, t]
        if t + 1 < uniform.shape[1]:
            arriving = select(run.move(t), path[:, t + 1].clamp(min=0), -1)
            scores = torch.where((t + 1 < lengths).unsqueeze(-1), scores + arriving, scores)
        path[:, t] = torch.where(t < lengths, invert(scores.softmax(-1), uniform[:, t]), -1)
    return path


@torch.no_grad()
def cavity(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> Tensor:
    """p(z_t | all observations except x_t): [B, T, K]. Zero in the padding, and where those observations are
    impossible."""
    run = Run(prior, transition, potentials, lengths)
    (start, _, weights), steps = run.leaves, run.scores.shape[1]
    rest, found = torch.zeros_like(start), []
    for t in reversed(range(steps)):
        before = start if t == 0 else (run.scores[:, t - 1].unsqueeze(-1) + run.move(t - 1)).logsumexp(-2)
        found.append(before + rest)
        if t > 0:
            onward = (run.move(t - 1) + (weights[:, t] + rest).unsqueeze(-2)).logsumexp(-1)
            rest = torch.where((t < lengths).unsqueeze(-1), onward, rest)
    scores = torch.stack(found[::-1], 1)
    possible = (scores.amax(-1) > IMPOSSIBLE) & run.inside
    return scores.softmax(-1) * possible.unsqueeze(-1)
