"""Exact inference in a discrete hidden Markov chain: pure functions of potentials, for any transition.

The chain is a prior over the first state, a transition, and potentials o_t(z) for every step:
    p(z, x) = prior(z_0) o_0(z_0) prod_t A(z_{t-1}, z_t) o_t(z_t).
The recursions over time are in `trellis.engines` (the forward algorithm: reference.py); these functions use them. Every
function takes
    prior       Belief over the first step's states ([B, K], or [B, k] at the live states of step 0)
    transition  any `Transition`, or a `TimeVarying`, such as `Blocks` (one matrix per transition)
    potentials  `Potentials`; a missing observation is marginalised
    lengths     [B] or None (all T)
A sequence underflows in scaled arithmetic if its potentials differ too much between states. Such sequences are
recomputed in log space, except while gradients are recorded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trellis import engines
from trellis.devices import Draws, draw_uniform
from trellis.engines import log_space, reference, replay, with_gaps
from trellis.engines.reference import AnyTransition, add_rows, at_states, last_step, to_dense, written_step
from trellis.errors import TrellisError
from trellis.parts import countable
from trellis.transitions import Blocks, ClassBlocks, Samplable, TimeVarying, Transition
from trellis.transitions.base import invert
from trellis.types import Belief, Counts, Filtered, Posterior, Potentials


class LiveChain(NamedTuple):
    """The chain that the engines run on: over live states only, or over all states."""

    prior: Belief
    transition: AnyTransition
    potentials: Potentials
    lengths: Tensor
    ids: Tensor | None  # [B, T, k]: the original ids of the chain's states; None if it has all of them
    equal_lengths: bool = False  # known statically: every length is T

    def name_belief(self, belief: Belief) -> Belief:
        """The state distribution at each sequence's last step, with the original ids of the live states."""
        if self.ids is None:
            return belief
        return Belief(belief.probs, self.ids[:, -1] if self.equal_lengths else last_step(self.ids, self.lengths))

    def some(self, sequences: Tensor) -> LiveChain:
        """The chain of some of the sequences. The result has no original ids of states."""
        prior, transition, potentials, lengths = self[:4]
        transition = transition.some(sequences) if isinstance(transition, TimeVarying) else transition
        ids = None if potentials.ids is None else potentials.ids[sequences]
        potentials = potentials._replace(rows=potentials.rows[sequences], ids=ids).widen(transition.num_states)
        return LiveChain(Belief(prior.probs[sequences]), transition, potentials, lengths[sequences], None)


def live_chain(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor | None) -> LiveChain:
    """The chain restricted to live states, with the transitions between them.

    A missing observation makes all states live at that step. Such a chain is processed by the reference engine, which
    handles steps over live states and steps over all states."""
    batch, steps = potentials.rows.shape
    equal = lengths is None and steps > 0
    lengths = potentials.rows.new_full((batch,), steps) if lengths is None else lengths
    ids = potentials.ids
    if ids is None or potentials.has_gaps(lengths):
        return LiveChain(Belief(to_dense(prior, transition.num_states)), transition, potentials, lengths, None)
    start = prior.probs if prior.ids is not None else at_states(prior.probs, ids[:, 0])
    between = transition.between(ids, potentials.groups)
    return LiveChain(Belief(start), between, potentials._replace(ids=None, groups=None), lengths, ids, equal)


def run(function: str, chain: LiveChain) -> Any:
    """Run an engine function whose first output is log p(x_t | x_<t); underflowed sequences are rerun in log space."""
    found = getattr(engines, function)(*chain[:4])
    return rescued(function, chain, found, Finite(found[0]))


def rescued(function: str, chain: LiveChain, found: Any, finite: Finite) -> Any:
    """The output of an engine function, with underflowed sequences recomputed. If there are none, the same object is
    returned."""
    lost = lost_sequences(found[0], chain, finite)
    if lost is None:
        return found
    if isinstance(chain.transition, ClassBlocks):
        return run(function, chain._replace(transition=Blocks(chain.transition.matrix)))
    again = getattr(log_space, function)(*chain.some(lost)[:4])
    if function == "expect":
        shared = not isinstance(chain.transition, TimeVarying) or again.moves.dim() < 4
        moves = found.moves + again.moves if shared else put(found.moves, again.moves, lost)
        names = ("log_norms", "belief", "entry", "starts")
        replaced = {name: put(getattr(found, name), getattr(again, name), lost) for name in names}
        visits = found.visits + live_visits(chain, again.visits, lost)
        return found._replace(**replaced, moves=moves, visits=visits)
    return tuple(put(one, other, lost) for one, other in zip(found, again, strict=True))


class Finite:
    """Whether no sequence looks impossible. Not checked while gradients or a CUDA graph are recorded."""

    total: Tensor | None = None
    copied: torch.cuda.Event | None = None

    def __init__(self, log_norms: Tensor) -> None:
        if not (log_norms.requires_grad or (log_norms.is_cuda and torch.cuda.is_current_stream_capturing())):
            self.total = log_norms.detach().sum()

    def begun(self) -> Finite:
        """The same check, copied to the host while the device continues with later work."""
        if self.total is not None and self.total.is_cuda:
            stream, self.copied = torch.cuda.current_stream(self.total.device), torch.cuda.Event()
            self.total = self.total.to("cpu", non_blocking=True)
            self.copied.record(stream)
        return self

    def __bool__(self) -> bool:
        if self.copied is not None:
            self.copied.synchronize()
        return self.total is None or float(self.total) > -torch.inf


def lost_sequences(log_norms: Tensor, chain: LiveChain, finite: Finite) -> Tensor | None:
    """Indices [n] of the sequences that look impossible but may have underflowed; None if there are none."""
    if finite:
        return None
    lost = log_norms.sum(1) == -torch.inf
    helped = log_space.may_help(chain.transition, chain.potentials, lost.sum())
    return lost.nonzero().squeeze(-1) if helped else None


def live_visits(chain: LiveChain, visits: Tensor, sequences: Tensor) -> Tensor:
    """Expected visits of some sequences, by row of the table of the chain's potentials.

    If a gap has made all states live, `visits` [n T, K] has a row for each step. It is restricted to the states that
    can emit the observation of the step."""
    potentials, ids = chain.potentials, chain.potentials.ids
    if ids is None:
        return visits
    posterior = visits.view(len(sequences), -1, visits.shape[-1]).gather(-1, ids[sequences])
    rows = potentials.rows.masked_fill(~potentials.inside(chain.lengths), -1)[sequences]
    return add_rows(potentials._replace(rows=rows), posterior)


def put(values: Any, right: Any, sequences: Tensor) -> Any:
    """`values` [B, ...] (or a `Belief`) with the entries of some sequences [n] replaced."""
    if isinstance(values, Belief):
        return values._replace(probs=put(values.probs, right.probs, sequences))
    return values.index_copy(0, sequences, right.to(values.dtype))


def score(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor | None = None
) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] (zero in the padding) and the last state distribution; differentiable."""
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, belief = run("score", chain)
    return log_norms, chain.name_belief(belief)


def log_likelihood(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor | None = None
) -> Tensor:
    """log p(x), summed in float64: [B]; -inf, with no gradient, for a sequence of probability zero."""
    chain = live_chain(prior, transition, potentials, lengths)
    found = engines.score(*chain[:4])
    finite = Finite(found[0]).begun()
    total = found[0].sum(1, dtype=torch.float64)  # queued before the check for underflow, which waits for a GPU
    right = rescued("score", chain, found, finite)
    total = total if right is found else right[0].sum(1, dtype=torch.float64)
    return total.masked_fill(total == -torch.inf, -torch.inf) if total.requires_grad else total


def filter(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor | None = None) -> Filtered:
    """Filtered distributions p(z_t | x_<=t) of all steps, zero in the padding. They are over the live states, which can
    emit the observed symbol, or over all states if an observation of the batch is missing."""
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, probs, belief = run("filter", chain)
    return Filtered(log_norms, probs, chain.name_belief(belief))


def smooth(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor | None = None
) -> Posterior:
    """Smoothed p(z_t | x) of every step: the gradient of log p(x) with respect to the log-potentials."""
    log_norms, probs = run("smooth", live_chain(prior, transition, potentials, lengths))
    return Posterior(log_norms.sum(1, dtype=torch.float64), probs.clamp_(min=0))


def counts(
    prior: Belief,
    transition: AnyTransition,
    potentials: Potentials,
    lengths: Tensor | None = None,
    carried: Belief | None = None,
    fresh: Tensor | None = None,
    per_sequence: bool = False,
) -> tuple[Counts, Belief]:
    """The log-likelihood and the expected starts, transitions and visits under p(z | x), summed over the batch, and the
    last state distribution. With `per_sequence`, the log-likelihood [B] and the starts [B, K] are not summed.

    `fresh` [B] marks the sequences that begin with the start distribution (default: all). The others continue an
    earlier batch, and the transition into their first step is counted instead of a start. For these, `carried` is the
    last state distribution of the earlier batch, and `prior` is the same one transition later. Transitions must then
    not vary with time."""
    transition = transition if isinstance(transition, TimeVarying) else countable(transition)
    if fresh is None or carried is None or bool(fresh.all()):
        fresh = carried = None
    more = carried, fresh, per_sequence
    made = replay.replayed_blocks("counts", expected, (prior, transition, potentials, lengths, *more))
    if made is not None and float(made[0].log_likelihood.sum()) > -torch.inf:
        return made
    chain = live_chain(prior, transition, potentials, lengths)
    found = engines.expect(*chain[:4])
    finite = Finite(found.log_norms).begun()
    counted = finish(found, chain, transition, *more)  # queued before the check for underflow, which waits for a GPU
    right = rescued("expect", chain, found, finite)
    return counted if right is found else finish(right, chain, transition, *more)


def expected(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor | None, *more: Any
) -> tuple[Counts, Belief]:
    """`counts` without a check for underflow."""
    chain = live_chain(prior, transition, potentials, lengths)
    return finish(engines.expect(*chain[:4]), chain, transition, *more)


def finish(
    found: reference.Expected, chain: LiveChain, transition: Any, carried: Belief | None, fresh: Tensor | None,
    per_sequence: bool,
) -> tuple[Counts, Belief]:  # fmt: skip
    """The counts over all states, and the last state distribution."""
    log_norms, belief, entry, starts, moves, visits = found
    if chain.ids is not None:
        collected = isinstance(chain.transition, ClassBlocks) and moves.dim() == 2
        moves = moves if collected else transition.collect(chain.ids[:, :-1], chain.ids[:, 1:], moves)
        entry, starts = (to_dense(Belief(w, chain.ids[:, 0]), transition.num_states) for w in (entry, starts))
    if fresh is not None and carried is not None:
        if isinstance(transition, TimeVarying):
            raise TrellisError("Cannot count carried-over sequences with time-varying transitions.")
        starts = starts * fresh.unsqueeze(-1)
        before = to_dense(carried, transition.num_states) * ~fresh.unsqueeze(-1)
        moves = moves + transition.expected(before, entry)
    torch._foreach_clamp_min_([starts, moves, visits], 0.0)  # rounding may go below 0
    if per_sequence:
        return Counts(log_norms.sum(1, dtype=torch.float64), starts, moves, visits), chain.name_belief(belief)
    total, starts = log_norms.sum(dtype=torch.float64), starts.sum(0)
    return Counts(total, starts, moves, visits), chain.name_belief(belief)


def viterbi(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The Viterbi path [B, T] (-1 in the padding) and its log-probability log p(z, x) [B].

    Ties go to the lowest state. Missing observations are summed out: the path is the most probable one given the
    observed symbols. To maximise over missing symbols as well, use max_x log p(x | z) as their log-potential."""
    chain = live_chain(prior, transition, potentials, lengths)
    if chain.ids is None and potentials.ids is not None and isinstance(transition, Transition):
        return viterbi_with_gaps(chain, transition)
    all_live = chain.potentials.widen(transition.num_states)
    path, scores = engines.viterbi(chain.prior, chain.transition, all_live, chain.lengths)
    return name_states(path, chain.ids), scores


def viterbi_with_gaps(chain: LiveChain, transition: Transition) -> tuple[Tensor, Tensor]:
    """`viterbi` for sequences with gaps. Sequences are decoded one at a time, because each has its own live states."""
    batch, steps = chain.potentials.rows.shape
    path = chain.potentials.rows.new_full((batch, steps), -1)
    scores = chain.prior.probs.new_zeros(batch)
    for row, length in enumerate(chain.lengths.tolist()):
        if length:
            prior, some = Belief(chain.prior.probs[row : row + 1]), chain.potentials.first(row, length)
            path[row, :length], scores[row] = with_gaps.Passes(prior, transition, some).viterbi()
    return path, scores


def sample_prior(
    start: Tensor, transition: AnyTransition, batch: int, steps: int, generator: torch.Generator | None = None
) -> Tensor:
    """Ancestral samples of the chain, z_0 ~ start [K], z_t ~ A(z_{t-1}, .): [batch, steps]."""
    if not isinstance(transition, Samplable | TimeVarying):
        raise TrellisError(f"{type(transition).__name__} transitions do not support sampling.")
    uniform = draw_uniform((batch, steps), start.device, generator)
    states = [invert(start.expand(batch, -1).contiguous(), uniform[:, 0])]
    fixed = transition.for_draws(batch * steps) if isinstance(transition, Samplable) else None
    for t in range(1, steps):
        operator = fixed or written_step(transition, t - 1)
        states.append(operator.sample_next(states[-1], uniform[:, t]))
    return torch.stack(states, 1)


def sample_posterior(
    prior: Belief,
    transition: AnyTransition,
    potentials: Potentials,
    lengths: Tensor | None = None,
    generator: torch.Generator | Draws | None = None,
) -> Tensor:
    """Sample one path per sequence from p(z | x) by forward filtering, backward sampling: [B, T], -1 in the padding."""
    chain = live_chain(prior, transition, potentials, lengths)
    log_norms, probs, _ = engines.filter(*chain[:4])
    uniform = draw_uniform(probs.shape[:2], probs.device, generator)
    path = engines.sample(chain.transition, probs, chain.lengths, uniform)
    if (lost := lost_sequences(log_norms, chain, Finite(log_norms))) is not None:
        path = put(path, log_space.sample(*chain.some(lost)[:4], uniform[lost]), lost)
    return name_states(path, chain.ids)


def name_states(path: Tensor, ids: Tensor | None) -> Tensor:
    """Map indices among the live states [B, T, k] to state ids: [B, T] -> [B, T]."""
    if ids is None:
        return path
    return ids.gather(-1, path.clamp(min=0).unsqueeze(-1)).squeeze(-1).masked_fill(path < 0, -1)
