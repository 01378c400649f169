"""Exact inference in a discrete hidden Markov chain: pure functions over potentials, for any transition operator.

The chain is a prior belief over the first state, a transition operator, and potentials o_t(z) for every step:
    p(z, x) = prior(z_0) o_0(z_0) prod_t A(z_{t-1}, z_t) o_t(z_t).
The forward pass itself is in `trellis.engines.reference`; here are its uses. Every function takes
    prior       Belief over the first step's states ([B, K], or [B, k] at the live states of step 0)
    transition  any `Transition`
    potentials  `Potentials`; a missing observation is marginalised
    lengths     [B] or None (all T)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis import engines
from trellis.devices import draw_uniform
from trellis.engines.reference import at_states, last_step, move, to_dense
from trellis.errors import TrellisError
from trellis.transitions import Transition
from trellis.transitions.base import invert
from trellis.types import Belief, Counts, Filtered, Posterior, Potentials

MAX_ROUNDS, SETTLED = 2000, 1e-7

__all__ = [
    "counts",
    "counts_apart",
    "filter",
    "log_likelihood",
    "move",
    "sample_posterior",
    "sample_prior",
    "score",
    "smooth",
    "viterbi",
]


def full_lengths(potentials: Potentials, lengths: Tensor | None) -> Tensor:
    batch, steps = potentials.rows.shape
    return potentials.rows.new_full((batch,), steps) if lengths is None else lengths


class Chain(NamedTuple):
    """What the pass over time runs on."""

    prior: Belief
    transition: Transition
    potentials: Potentials
    narrow: Tensor | None  # [B, T, k]: the states that the chain's own states stand for; None where it has all of them


def live_chain(prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor) -> Chain:
    """The chain over live states alone, its transitions the blocks [B, T-1, k, k] between them.

    Where some observation is missing, all states are live at that step: the chain is left to the reference, which joins
    the two regimes."""
    ids = potentials.ids
    if ids is None or potentials.has_gaps(lengths):
        return Chain(Belief(to_dense(prior, transition.num_states)), transition, potentials, None)
    blocks = transition.along(ids, potentials.groups)
    start = prior.probs if prior.ids is not None else at_states(prior.probs, ids[:, 0])
    return Chain(Belief(start), blocks, potentials._replace(ids=None, groups=None), ids)


def score(
    prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor | None = None
) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] (zero past the end) and the belief to carry on; differentiable in every parameter."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, belief = engines.score(chain.prior, chain.transition, chain.potentials, lengths)
    return log_norms, name_belief(belief, chain.narrow, lengths)


def name_belief(belief: Belief, ids: Tensor | None, lengths: Tensor) -> Belief:
    """A belief over the live states of each sequence's last step, with their names out of ids [B, T, k]."""
    return belief if ids is None else Belief(belief.probs, last_step(ids, lengths))


def log_likelihood(
    prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor | None = None
) -> Tensor:
    """log p(x), summed in float64: [B]; -inf, with no gradient, for an impossible sequence."""
    total = score(prior, transition, potentials, lengths)[0].sum(1, dtype=torch.float64)
    return total.masked_fill(total == -torch.inf, -torch.inf)


def filter(prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor | None = None) -> Filtered:
    """p(z_t | x_<=t) for every step, over the live states (over all where the batch has a gap); zero past the end."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, probs, belief = engines.filter(chain.prior, chain.transition, chain.potentials, lengths)
    return Filtered(log_norms, probs, name_belief(belief, chain.narrow, lengths))


def smooth(prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor | None = None) -> Posterior:
    """p(z_t | x) for every step: the gradient of log p(x) in the log-potentials, rounded to 0 where it falls below."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, probs = engines.smooth(chain.prior, chain.transition, chain.potentials, lengths)
    return Posterior(log_norms.sum(1, dtype=torch.float64), probs.clamp_(min=0))


def counts(
    prior: Belief,
    transition: Transition,
    potentials: Potentials,
    lengths: Tensor | None = None,
    carried: Belief | None = None,
    fresh: Tensor | None = None,
) -> tuple[Counts, Belief]:
    """Expected starts, transitions and visits under p(z | x), added up over the batch, and the belief to carry on.

    See `counts_apart` for `carried` and `fresh`."""
    apart, belief = counts_apart(prior, transition, potentials, lengths, carried, fresh)
    return apart._replace(log_likelihood=apart.log_likelihood.sum(), start=apart.start.sum(0)), belief


def counts_apart(
    prior: Belief,
    transition: Transition,
    potentials: Potentials,
    lengths: Tensor | None = None,
    carried: Belief | None = None,
    fresh: Tensor | None = None,
) -> tuple[Counts, Belief]:
    """`counts` with the log-likelihood [B] and the starts [B, K] of every sequence apart.

    `fresh` [B] tells which sequences begin with the start distribution (all, unless told); the others continue from the
    belief `carried`, of which `prior` is the next step: their first transition is counted instead of a start. That
    transition comes before the first step, so it is counted only where transitions do not vary with time."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, belief, entry, moves, visits = engines.expect(chain.prior, chain.transition, chain.potentials, lengths)
    first = chain.prior
    if chain.narrow is not None:
        moves = transition.collect(chain.narrow[:, :-1], chain.narrow[:, 1:], moves)
        belief = name_belief(belief, chain.narrow, lengths)
        first = Belief(first.probs, chain.narrow[:, 0])
        entry = to_dense(Belief(entry, first.ids), transition.num_states)
    starts = entry * to_dense(first, transition.num_states)
    if fresh is not None and carried is not None and not bool(fresh.all()):
        if transition.at(0) is not transition:
            raise TrellisError(
                "Expected transitions into a carried sequence need transitions that do not vary with time."
            )
        starts = starts * fresh.unsqueeze(-1)
        before = to_dense(carried, transition.num_states) * ~fresh.unsqueeze(-1)
        moves = moves + transition.bilinear(before, entry)
    starts, moves, visits = (found.clamp_(min=0) for found in (starts, moves, visits))  # rounding may go below
    return Counts(log_norms.sum(1, dtype=torch.float64), starts, moves, visits), belief


def viterbi(
    prior: Belief, transition: Transition, potentials: Potentials, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The most probable path of states [B, T] (-1 past the end) and its log-probability log p(z, x) [B].

    A missing observation is summed out, not maximised: its potential is one, so the path is the best explanation of
    what was observed. To maximise over the missing symbols too, give the step the potential max_x log p(x | z)."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    all_live = chain.potentials.widen(transition.num_states)
    path, scores = engines.viterbi(chain.prior, chain.transition, all_live, lengths)
    return name_states(path, chain.narrow), scores


def sample_prior(
    start: Tensor, transition: Transition, batch: int, steps: int, generator: torch.Generator | None = None
) -> Tensor:
    """Ancestral samples of the chain, z_0 ~ start [K], z_t ~ A(z_{t-1}, .): [batch, steps]."""
    uniform = draw_uniform((batch, steps), start.device, generator)
    states = [invert(start.expand(batch, -1).contiguous(), uniform[:, 0])]
    transition = transition.ready(batch * steps)
    for t in range(1, steps):
        states.append(transition.at(t - 1).sample_next(states[-1], uniform[:, t]))
    return torch.stack(states, 1)


def sample_posterior(
    prior: Belief,
    transition: Transition,
    potentials: Potentials,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Paths from p(z | x), one per sequence, by forward filtering and backward sampling: [B, T], -1 past the end."""
    lengths = full_lengths(potentials, lengths)
    chain = live_chain(prior, transition, potentials, lengths)
    _, probs, _ = engines.filter(chain.prior, chain.transition, chain.potentials, lengths)
    uniform = draw_uniform(probs.shape[:2], probs.device, generator)
    return name_states(engines.sample(chain.transition, probs, lengths, uniform), chain.narrow)


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
    """Indices among the live states -> the states themselves: [B, T] -> [B, T]."""
    if ids is None:
        return path
    return ids.gather(-1, path.clamp(min=0).unsqueeze(-1)).squeeze(-1).masked_fill(path < 0, -1)
