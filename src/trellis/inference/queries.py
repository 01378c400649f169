"""Exact queries on a chain over symbols: tokens [B, T], where -1 is a missing word.

The queries use two facts: a potential of one marginalises a missing word, and a conditional probability is a ratio of
two marginals.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from trellis.devices import Draws
from trellis.emissions import SymbolEmission
from trellis.engines import log_space
from trellis.engines.reference import to_dense
from trellis.inference.discrete import LiveChain, filter, log_likelihood, sample_posterior, smooth
from trellis.transitions import Blocks, TimeVarying, Transition
from trellis.transitions.transposed import transposed
from trellis.types import Belief, Potentials


class Chain(NamedTuple):
    """A hidden Markov chain: prior of the first step, transition, emission."""

    prior: Belief  # [B, K]
    transition: Transition
    emission: SymbolEmission
    gaps: SymbolEmission | None = None  # the emission of missing words, if different: see `only`

    def potentials(self, tokens: Tensor) -> Potentials:
        """The potentials of tokens; a missing word is marginalised over its possible values."""
        if self.gaps is None:
            return self.emission.potentials(tokens)
        return self.with_gaps(tokens, self.gaps.log_totals())

    def with_gaps(self, tokens: Tensor, scores: Tensor) -> Potentials:
        """The potentials of tokens, with log-potentials `scores` [K] for missing words."""
        known = self.emission.potentials(tokens)
        if known.ids is not None:
            return known._replace(missing=scores)
        rows = torch.where(tokens < 0, len(known.table), known.rows)
        return Potentials(torch.cat([known.table, scores.unsqueeze(0)]), rows)

    def only(self, allowed: Tensor) -> Self:
        """The chain with missing words restricted to the allowed ones, [V] bool."""
        return self._replace(gaps=self.emission.only(allowed))


def log_marginal(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p of the observed words, with missing words marginalised: [B]."""
    return log_likelihood(chain.prior, chain.transition, chain.potentials(tokens), lengths)


def log_conditional(chain: Chain, tokens: Tensor, given: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(all other words | the words marked by `given` [B, T]): [B]; -inf if the marked words are impossible."""
    joint = log_marginal(chain, tokens, lengths)
    condition = log_marginal(chain, tokens.masked_fill(~given, -1), lengths)
    return torch.where(joint == -torch.inf, joint, joint - condition)


def cavity(chain: Chain, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """p(z_t | all observations except x_t): [B, T, K]. Zero in the padding, and where the other observations are
    impossible.

    It is proportional to p(z_t | x_<t) p(x_>t | z_t). The first factor is the prediction of the filter. The second
    comes from the filter of the time-reversed chain."""
    transition, steps = chain.transition, torch.arange(potentials.rows.shape[1], device=potentials.rows.device)
    lengths = steps.new_full((len(potentials.rows),), len(steps)) if lengths is None else lengths
    inside = steps < lengths.unsqueeze(-1)
    first = to_dense(chain.prior, transition.num_states).unsqueeze(1)
    _, ahead = filtered(chain.prior, transition, potentials, lengths)
    predicted = torch.cat([first, move_all(transition, ahead[:, :-1], "forward")], 1)
    rest, _ = backward_messages(chain, potentials, lengths)
    found = normalised(predicted * rest) * inside.unsqueeze(-1)
    lost = ((found.sum(-1) == 0) & inside).any(1).nonzero().squeeze(-1)
    if found.requires_grad or not len(lost) or not log_space.may_help(transition, potentials, len(lost)):
        return found
    again = LiveChain(Belief(first.squeeze(1)), transition, potentials, lengths, None).some(lost)
    return found.index_copy(0, lost, log_space.cavity(*again[:4]).to(found.dtype))


def backward_messages(chain: Chain, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """p(x_>t | z_t) for every step, [B, T, K], divided by exp of the log-scales [B, T]. Computed by the filter of the
    time-reversed chain."""
    steps = torch.arange(potentials.rows.shape[1], device=lengths.device)
    last = lengths.unsqueeze(-1) - 1
    mirror = torch.where(steps <= last, last - steps, steps)  # [B, T]
    even = Belief(torch.ones_like(to_dense(chain.prior, chain.transition.num_states)))
    log_norms, behind = filtered(even, reverse(chain.transition, lengths), in_order(potentials, mirror), lengths)
    behind = behind.gather(1, mirror.unsqueeze(-1).expand_as(behind))
    scales = log_norms.cumsum(1, dtype=torch.float64).gather(1, mirror)
    rest = torch.cat([move_all(chain.transition, behind[:, 1:], "backward"), torch.ones_like(behind[:, :1])], 1)
    scales = torch.cat([scales[:, 1:], torch.zeros_like(scales[:, :1])], 1)
    final = steps == last
    return rest.masked_fill(final.unsqueeze(-1), 1.0), scales.masked_fill(final, 0.0)


def filtered(
    prior: Belief, transition: Transition | Blocks, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T], and p(z_t | x_<=t) over all states, [B, T, K]."""
    live = None if potentials.has_gaps(lengths) else potentials.ids
    log_norms, probs, _ = filter(prior, transition, potentials, lengths)
    return log_norms, to_dense(Belief(probs, live), transition.num_states)


def in_order(potentials: Potentials, order: Tensor) -> Potentials:
    """Reorder the steps of each sequence: `order` is [B, T]."""
    rows, ids = potentials.rows.gather(1, order), potentials.ids
    ids = None if ids is None else ids.gather(1, order.unsqueeze(-1).expand_as(ids))
    return potentials._replace(rows=rows, ids=ids, groups=None)


def reverse(transition: Transition | Blocks, lengths: Tensor) -> Transition | Blocks:
    """The transitions of time-reversed sequences."""
    if not isinstance(transition, TimeVarying):
        return transposed(transition)
    matrix = transition.dense().mT
    steps = torch.arange(matrix.shape[-3], device=lengths.device)
    order = (lengths.unsqueeze(-1) - 2 - steps).clamp(min=0)  # [B, T-1]; steps in the padding are never used
    matrix = matrix.expand(len(lengths), *matrix.shape[-3:])
    return Blocks(matrix.gather(1, order[..., None, None].expand_as(matrix)))


def move_all(transition: Transition | Blocks, values: Tensor, direction: str) -> Tensor:
    """Move values by one step at all T - 1 transitions, forward or backward: [B, T-1, K] -> [B, T-1, K]."""
    if not isinstance(transition, TimeVarying):
        return getattr(transition, direction)(values)
    moved = [getattr(transition.at(t), direction)(values[:, t]) for t in range(values.shape[1])]
    return torch.stack(moved, 1) if moved else values


def normalised(weights: Tensor) -> Tensor:
    """Divide by the sum, or return zero if it is zero: [..., K] -> [..., K]."""
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def word_given_rest(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(x_t = v | all other observed words), for every position: [B, T, V]."""
    words = chain.gaps or chain.emission
    log_probs = words.predict(cavity(chain, chain.potentials(tokens), lengths))
    total = log_probs.logsumexp(-1, keepdim=True)
    return log_probs - total.masked_fill(total == -torch.inf, 0.0)


def gap_words(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(x_t = v | known words) of the n missing words of all sentences, in their order: [n, V].

    The same as `word_given_rest` at the gaps, but steps between known words run over live states."""
    potentials = chain.potentials(tokens)
    posterior = smooth(chain.prior, chain.transition, potentials, lengths).probs
    ends = tokens.new_full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
    gaps = (tokens < 0) & potentials.inside(ends)
    here = posterior[gaps] if bool(gaps.any()) else posterior.new_zeros(0, chain.transition.num_states)
    return words_of(chain, here)[1]


def words_of(chain: Chain, posterior: Tensor) -> tuple[Tensor, Tensor]:
    """Given p(z_t | known words) at gaps [n, K]: the same without the potential of the gap itself, [n, K], and the
    distribution of the missing words log p(x_t = v | known words), [n, V]."""
    words = chain.gaps or chain.emission
    if chain.gaps is not None:
        totals = words.log_totals().exp()
        posterior = torch.where(totals > 0, posterior / totals, 0.0)
    states = normalised(posterior)
    log_probs = words.predict(states)
    total = log_probs.logsumexp(-1, keepdim=True)
    return states, log_probs - total.masked_fill(total == -torch.inf, 0.0)


def sample_gaps(
    chain: Chain, tokens: Tensor, lengths: Tensor | None = None, generator: torch.Generator | Draws | None = None
) -> Tensor:
    """Sample the missing words jointly from their posterior, and keep the others: [B, T]."""
    path = sample_posterior(chain.prior, chain.transition, chain.potentials(tokens), lengths, generator)
    words = (chain.gaps or chain.emission).sample(path.clamp(min=0), generator)
    return torch.where((tokens < 0) & (path >= 0), words, tokens)
