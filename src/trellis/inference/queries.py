"""Questions to a chain with categorical emissions, all exact: tokens [B, T], where -1 is a word that is not known.

Every answer follows from two facts: a missing word is summed out by a potential of one, and a conditional probability
is a ratio of two marginal ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions import Categorical
from trellis.engines import reference
from trellis.inference.discrete import full_lengths, log_likelihood, sample_posterior, viterbi
from trellis.transitions import Transition
from trellis.types import Belief, Potentials


class Chain(NamedTuple):
    """A hidden Markov chain as numbers: prior of the first step, transitions, emissions."""

    prior: Belief  # [B, K]
    transition: Transition
    emission: Categorical
    gaps: Categorical | None = None  # what a missing word is drawn from, where that is not the emission: see `only`

    def potentials(self, tokens: Tensor) -> Potentials:
        """The potentials of tokens; a missing word is summed out over all that it may be."""
        if self.gaps is None:
            return self.emission.potentials(tokens)
        return self.with_gaps(tokens, self.gaps.log_totals())

    def with_gaps(self, tokens: Tensor, scores: Tensor) -> Potentials:
        """The potentials of tokens, those of a missing word given as scores [K]."""
        known = self.emission.potentials(tokens).widen(len(scores))
        rows = torch.where(tokens < 0, len(known.table), known.rows)
        return Potentials(torch.cat([known.table, scores.unsqueeze(0)]), rows)

    def only(self, allowed: Tensor) -> Chain:
        """The chain in which a missing word is one of the allowed [V] bool."""
        return self._replace(gaps=self.emission.only(allowed))


def next_word(chain: Chain) -> Tensor:
    """log p(x_0) under the chain's prior: [B, V]."""
    return chain.emission.predict(chain.prior.probs)


def log_marginal(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p of the words that are there, the others summed out: [B]."""
    return log_likelihood(chain.prior, chain.transition, chain.potentials(tokens), lengths)


def log_conditional(chain: Chain, tokens: Tensor, given: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(the words where not given | those where given): given [B, T] bool -> [B]; -inf if those are impossible."""
    joint = log_marginal(chain, tokens, lengths)
    condition = log_marginal(chain, tokens.masked_fill(~given, -1), lengths)
    return torch.where(joint == -torch.inf, joint, joint - condition)


def cavity(chain: Chain, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """p(z_t | all observations but that of t): [B, T, K], zero past the end and where the others are impossible.

    With p_t(z) the prediction of step t and r_t(z) = p(x_>t | z_t) up to a scale: p_t r_t, normalised. Neither knows
    x_t, so the answer stands even where x_t contradicts the rest."""
    lengths = full_lengths(potentials, lengths)
    transition, states = chain.transition, chain.transition.num_states
    steps = reference.Steps(potentials, states, lengths)
    filtered = reference.run_forward(chain.prior, transition, steps)[1]
    predicted = [reference.to_dense(chain.prior, states)]
    for t, probs in enumerate(filtered[:-1]):
        predicted.append(reference.move(Belief(probs, steps.ids(t)), transition.at(t), None))
    rest, answers = torch.ones_like(predicted[0]), []
    for t in reversed(range(len(steps))):
        ids, inside = steps.ids(t), steps.inside(t).unsqueeze(-1)
        answers.append(normalised(predicted[t] * rest) * inside)
        if t > 0:
            message = Belief(steps.weights(t)[0] * reference.at_states(rest, ids), ids)
            rest = torch.where(inside, normalised(reference.pull(message, transition.at(t - 1), None)), rest)
    return torch.stack(answers[::-1], 1)


def normalised(weights: Tensor) -> Tensor:
    """Divided by their sum, zero where there is none: [..., K] -> [..., K]."""
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def word_given_rest(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(x_t = v | every other known word), for every position: [B, T, V]."""
    words = chain.gaps or chain.emission
    log_probs = words.predict(cavity(chain, chain.potentials(tokens), lengths))
    total = log_probs.logsumexp(-1, keepdim=True)
    return log_probs - total.masked_fill(total == -torch.inf, 0.0)


def sample_gaps(
    chain: Chain, tokens: Tensor, lengths: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """The missing words drawn jointly from their posterior, the others as they are: [B, T]."""
    path = sample_posterior(chain.prior, chain.transition, chain.potentials(tokens), lengths, generator)
    words = (chain.gaps or chain.emission).sample(path.clamp(min=0), generator)
    return torch.where((tokens < 0) & (path >= 0), words, tokens)


def best_gaps(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The missing words of the most probable (path, words) together, [B, T], and its log-probability [B].

    The words are maximised jointly with the states; summing over states first has no efficient exact answer."""
    scores, words = (chain.gaps or chain.emission).best()
    path, log_prob = viterbi(chain.prior, chain.transition, chain.with_gaps(tokens, scores), lengths)
    return torch.where((tokens < 0) & (path >= 0), words[path.clamp(min=0)], tokens), log_prob
