"""Exact inference in a discrete hidden Markov chain: pure functions over potentials, for any transition.

The chain is a prior belief over the first state, a transition, and potentials o_t(z) for every step:
    p(z, x) = prior(z_0) o_0(z_0) prod_t A(z_{t-1}, z_t) o_t(z_t).
The passes over time are in `trellis.engines` (the forward algorithm: reference.py); here are their uses. Every function
takes
    prior       Belief over the first step's states ([B, K], or [B, k] at the live states of step 0)
    transition  any `Transition`, or `Blocks` where transitions vary with time
    potentials  `Potentials`; a missing observation is marginalised
    lengths     [B] or None (all T)
Sequences that scaled arithmetic loses, because potentials tell states too far apart, are computed again in log space
(not while gradients are recorded).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis import engines
from trellis.devices import draw_uniform
from trellis.engines import log_space
from trellis.engines.reference import Expected, at_states, last_step, move, to_dense
from trellis.errors import TrellisError
from trellis.transitions import Blocks, Countable, Operator, Samplable, TimeVarying, Transition
from trellis.transitions.base import invert
from trellis.types import Belief, Counts, Filtered, Posterior, Potentials

MAX_ROUNDS, SETTLED = 2000, 1e-7

__all__ = [
    "counts",
    "filter",
    "log_likelihood",
    "move",
    "sample_posterior",
    "sample_prior",
    "score",
    "sequence_counts",
    "smooth",
    "to_dense",
    "viterbi",
]


def full_lengths(potentials: Potentials, lengths: Tensor | None) -> Tensor:
    batch, steps = potentials.rows.shape
    return potentials.rows.new_full((batch,), steps) if lengths is None else lengths


class LiveChain(NamedTuple):
    """What the pass over time runs on: the chain over live states alone, or over all of them."""

    prior: Belief
    transition: Transition | TimeVarying
    potentials: Potentials
    ids: Tensor | None  # [B, T, k]: the states that the chain's own stand for; None where it has all of them

    @property
    def problem(self) -> tuple[Belief, Transition | TimeVarying, Potentials]:
        return self[:3]

    def name_belief(self, belief: Belief, lengths: Tensor) -> Belief:
        """A belief over each sequence's last live states, with their names."""
        return belief if self.ids is None else Belief(belief.probs, last_step(self.ids, lengths))

    def name_states(self, path: Tensor) -> Tensor:
        """Indices among the live states -> the states themselves: [B, T] -> [B, T]."""
        return name_states(path, self.ids)


def live_chain(prior: Belief, transition: Transition | Blocks, potentials: Potentials, lengths: Tensor) -> LiveChain:
    """The chain over live states alone, its transitions those between them.

    Where some observation is missing, all states are live at that step: the chain is left to the reference, which joins
    the two regimes."""
    ids = potentials.ids
    if ids is None or potentials.has_gaps(lengths):
        return LiveChain(Belief(to_dense(prior, transition.num_states)), transition, potentials, None)
    start = prior.probs if prior.ids is not None else at_states(prior.probs, ids[:, 0])
    between = transition.between(ids, potentials.groups)
    return LiveChain(Belief(start), between, potentials._replace(ids=None, groups=None), ids)


def score(
    prior: Belief, transition: Transition | Blocks, potentials: Potentials, lengths: Tensor | None = None
) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] (zero past the end) and the belief to carry on; differentiable in every parameter."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, belief = engines.score(*chain.problem, lengths)
    if (lost := Lost.among(log_norms, chain, lengths)) is not None:
        norms, last = log_space.score(*lost.problem)
        log_norms, belief = lost.put(log_norms, norms), lost.put_belief(belief, last)
    return log_norms, chain.name_belief(belief, lengths)


def log_likelihood(
    prior: Belief, transition: Transition | Blocks, potentials: Potentials, lengths: Tensor | None = None
) -> Tensor:
    """log p(x), summed in float64: [B]; -inf, with no gradient, for an impossible sequence."""
    total = score(prior, transition, potentials, lengths)[0].sum(1, dtype=torch.float64)
    return total.masked_fill(total == -torch.inf, -torch.inf)


def filter(
    prior: Belief, transition: Transition | Blocks, potentials: Potentials, lengths: Tensor | None = None
) -> Filtered:
    """p(z_t | x_<=t) for every step, over the live states (over all where the batch has a gap); zero past the end."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, probs, belief = engines.filter(*chain.problem, lengths)
    if (lost := Lost.among(log_norms, chain, lengths)) is not None:
        norms, filtered, last = log_space.filter(*lost.problem)
        log_norms, probs, belief = lost.put(log_norms, norms), lost.put(probs, filtered), lost.put_belief(belief, last)
    return Filtered(log_norms, probs, chain.name_belief(belief, lengths))


def smooth(
    prior: Belief, transition: Transition | Blocks, potentials: Potentials, lengths: Tensor | None = None
) -> Posterior:
    """p(z_t | x) for every step: the gradient of log p(x) in the log-potentials, rounded to 0 where it falls below."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, probs = engines.smooth(*chain.problem, lengths)
    if (lost := Lost.among(log_norms, chain, lengths)) is not None:
        norms, posterior = log_space.smooth(*lost.problem)
        log_norms, probs = lost.put(log_norms, norms), lost.put(probs, posterior)
    return Posterior(log_norms.sum(1, dtype=torch.float64), probs.clamp_(min=0))


def counts(
    prior: Belief,
    transition: Transition | Blocks,
    potentials: Potentials,
    lengths: Tensor | None = None,
    carried: Belief | None = None,
    fresh: Tensor | None = None,
) -> tuple[Counts, Belief]:
    """Expected starts, transitions and visits under p(z | x), added up over the batch, and the belief to carry on.

    See `sequence_counts` for `carried` and `fresh`."""
    found, belief = sequence_counts(prior, transition, potentials, lengths, carried, fresh)
    return found._replace(log_likelihood=found.log_likelihood.sum(), start=found.start.sum(0)), belief


def sequence_counts(
    prior: Belief,
    transition: Transition | Blocks,
    potentials: Potentials,
    lengths: Tensor | None = None,
    carried: Belief | None = None,
    fresh: Tensor | None = None,
) -> tuple[Counts, Belief]:
    """`counts` with the log-likelihood [B] and the starts [B, K] of every sequence on its own.

    `fresh` [B] tells which sequences begin with the start distribution (all by default); the others continue from the
    belief `carried`, of which `prior` is the next step: their first transition is counted instead of a start. That
    transition comes before the first step, so it is counted only where transitions do not vary with time."""
    if not isinstance(transition, Countable | Blocks):
        raise TrellisError(f"{type(transition).__name__} transitions have no sufficient statistics: learn by gradient.")
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, belief, entry, moves, visits = expect(chain, lengths)
    first = Belief(chain.prior.probs, None if chain.ids is None else chain.ids[:, 0])
    if chain.ids is not None:
        moves = transition.collect(chain.ids[:, :-1], chain.ids[:, 1:], moves)
        entry = to_dense(Belief(entry, first.ids), transition.num_states)
    starts = entry * to_dense(first, transition.num_states)
    if fresh is not None and carried is not None and not bool(fresh.all()):
        if isinstance(transition, TimeVarying):
            raise TrellisError(
                "Expected transitions into a carried sequence need transitions that do not vary with time."
            )
        starts = starts * fresh.unsqueeze(-1)
        before = to_dense(carried, transition.num_states) * ~fresh.unsqueeze(-1)
        moves = moves + transition.expected(before, entry)
    starts, moves, visits = (found.clamp_(min=0) for found in (starts, moves, visits))  # rounding may go below
    found = Counts(log_norms.sum(1, dtype=torch.float64), starts, moves, visits)
    return found, chain.name_belief(belief, lengths)


def expect(chain: LiveChain, lengths: Tensor) -> Expected:
    """The expected statistics of the chain as the engine gives them, lost sequences included."""
    found = engines.expect(*chain.problem, lengths)
    lost = Lost.among(found.log_norms, chain, lengths)
    if lost is None:
        return found
    again = log_space.expect(*lost.problem)  # type: ignore[arg-type]
    own = isinstance(chain.transition, TimeVarying) and again.moves.dim() == 4
    return Expected(
        lost.put(found.log_norms, again.log_norms),
        lost.put_belief(found.belief, again.belief),
        lost.put(found.entry, again.entry),
        lost.put(found.moves, again.moves) if own else found.moves + again.moves,
        found.visits + again.visits,
    )


class Lost(NamedTuple):
    """The sequences that look impossible and may not be, to be computed again."""

    sequences: Tensor  # [n]
    problem: tuple[Belief, Transition | TimeVarying, Potentials, Tensor]  # theirs

    @classmethod
    def among(cls, log_norms: Tensor, chain: LiveChain, lengths: Tensor) -> Lost | None:
        """None where there are none; nor is anything looked at while gradients or a CUDA graph are recorded."""
        capturing = log_norms.is_cuda and torch.cuda.is_current_stream_capturing()
        if log_norms.requires_grad or capturing or bool(log_norms.sum() > -torch.inf):
            return None
        prior, transition, potentials, _ = chain
        if not log_space.may_help(transition, potentials):
            return None
        lost = (log_norms.sum(1) == -torch.inf).nonzero().squeeze(-1)
        if isinstance(transition, TimeVarying) and transition.dense().dim() == 4:
            transition = Blocks(transition.dense()[lost])
        potentials = potentials._replace(
            rows=potentials.rows[lost], ids=None if potentials.ids is None else potentials.ids[lost]
        ).widen(transition.num_states)
        return cls(lost, (Belief(prior.probs[lost]), transition, potentials, lengths[lost]))

    def put(self, values: Tensor, right: Tensor) -> Tensor:
        """[B, ...] with theirs [n, ...] in place."""
        return values.index_copy(0, self.sequences, right.to(values.dtype))

    def put_belief(self, belief: Belief, right: Belief) -> Belief:
        return belief._replace(probs=self.put(belief.probs, right.probs))


def viterbi(
    prior: Belief, transition: Transition | Blocks, potentials: Potentials, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The most probable path of states [B, T] (-1 past the end) and its log-probability log p(z, x) [B].

    Ties go to the lowest state. A missing observation is summed out, not maximised: its potential is one, so the path
    is the best explanation of what was observed. To maximise over the missing symbols too, give the step the potential
    max_x log p(x | z)."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    all_live = chain.potentials.widen(transition.num_states)
    path, scores = engines.viterbi(chain.prior, chain.transition, all_live, lengths)
    return chain.name_states(path), scores


def sample_prior(
    start: Tensor, transition: Operator | Blocks, batch: int, steps: int, generator: torch.Generator | None = None
) -> Tensor:
    """Ancestral samples of the chain, z_0 ~ start [K], z_t ~ A(z_{t-1}, .): [batch, steps]."""
    uniform = draw_uniform((batch, steps), start.device, generator)
    states = [invert(start.expand(batch, -1).contiguous(), uniform[:, 0])]
    fixed = transition.for_draws(batch * steps) if isinstance(transition, Samplable) else None  # or Blocks
    for t in range(1, steps):
        operator = fixed or transition.at(t - 1)  # type: ignore[union-attr]
        states.append(operator.sample_next(states[-1], uniform[:, t]))
    return torch.stack(states, 1)


def sample_posterior(
    prior: Belief,
    transition: Transition | Blocks,
    potentials: Potentials,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Paths from p(z | x), one per sequence, by forward filtering and backward sampling: [B, T], -1 past the end."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    _, probs, _ = engines.filter(*chain.problem, lengths)
    uniform = draw_uniform(probs.shape[:2], probs.device, generator)
    return chain.name_states(engines.sample(chain.transition, probs, lengths, uniform))


@torch.no_grad()
def stationary(start: Tensor, transition: Transition, ends: Tensor) -> Tensor:
    """The long-run distribution of a chain that begins anew after state z with probability ends(z): [K].

    Half a step at a time, which has the same fixed point and settles for periodic chains too."""
    share = start
    for _ in range(MAX_ROUNDS):
        onward = transition.forward(share * (1 - ends)) + (share * ends).sum() * start
        change = float((onward - share).abs().sum())
        share = (share + onward) / (share + onward).sum()
        if change < SETTLED:
            break
    return share


def name_states(path: Tensor, ids: Tensor | None) -> Tensor:
    """Indices among the live states [B, T, k] -> the states themselves: [B, T] -> [B, T]."""
    if ids is None:
        return path
    return ids.gather(-1, path.clamp(min=0).unsqueeze(-1)).squeeze(-1).masked_fill(path < 0, -1)
