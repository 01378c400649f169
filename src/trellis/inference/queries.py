"""Questions to a chain with categorical emissions, all exact: tokens [B, T], where -1 is a word that is not known.

Every answer follows from two facts: a missing word is summed out by a potential of one, and a conditional probability
is a ratio of two marginal ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions import Categorical
from trellis.inference.discrete import full_lengths, log_likelihood, mode, sample_posterior
from trellis.kernels.scan import naive
from trellis.operators import Transition
from trellis.types import Belief, Potentials


class Chain(NamedTuple):
    """A hidden Markov chain as numbers: prior of the first step, transitions, emissions."""

    prior: Belief  # [B, K]
    transition: Transition
    emission: Categorical


def next_word(chain: Chain) -> Tensor:
    """log p(x_0) under the chain's prior: [B, V]."""
    return chain.emission.predict(chain.prior.probs)


def log_marginal(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p of the words that are there, the others summed out: [B]."""
    return log_likelihood(chain.prior, chain.transition, chain.emission.potentials(tokens), lengths)


def log_conditional(chain: Chain, tokens: Tensor, given: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(the words where not given | those where given): given [B, T] bool -> [B]; -inf if those are impossible."""
    joint = log_marginal(chain, tokens, lengths)
    condition = log_marginal(chain, tokens.masked_fill(~given, -1), lengths)
    return torch.where(joint == -torch.inf, joint, joint - condition)


def cavity(chain: Chain, potentials: Potentials, lengths: Tensor | None = None) -> Tensor:
    """p(z_t | all observations but that of t): [B, T, K], zero past the end."""
    lengths = full_lengths(potentials, lengths)
    transition, states = chain.transition, chain.transition.num_states
    steps = naive.Steps(potentials, states, lengths)
    log_norms, filtered = naive.run_forward(chain.prior, transition, steps)
    ones = torch.ones_like(torch.stack(log_norms, 1))
    _, pulls = naive.adjoint(transition, steps, log_norms, filtered, ones)
    answers = []
    for t in range(len(steps)):
        before = naive.spread(chain.prior, states)
        if t > 0:
            before = naive.move(Belief(filtered[t - 1], steps.ids(t - 1)), transition.at(t - 1), None)
        if t + 1 < len(steps):
            after = naive.pull(Belief(pulls[t + 1], steps.ids(t + 1)), transition.at(t), None)
            before = before * torch.where((t + 1 < lengths).unsqueeze(-1), after, 1.0)
        total = before.sum(-1, keepdim=True)
        answers.append(before / total.masked_fill(total == 0, 1.0) * steps.inside(t).unsqueeze(-1))
    return torch.stack(answers, 1)


def word_given_rest(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """log p(x_t = v | every other known word), for every position: [B, T, V]."""
    return chain.emission.predict(cavity(chain, chain.emission.potentials(tokens), lengths))


def sample_gaps(
    chain: Chain, tokens: Tensor, lengths: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """The missing words drawn jointly from their posterior, the others as they are: [B, T]."""
    potentials = chain.emission.potentials(tokens)
    path = sample_posterior(chain.prior, chain.transition, potentials, lengths, generator)
    words = chain.emission.sample(path.clamp(min=0), generator)
    return torch.where((tokens < 0) & (path >= 0), words, tokens)


def best_gaps(chain: Chain, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The missing words of the most probable (path, words) together, [B, T], and its log-probability [B].

    The words are maximised jointly with the states; summing over states first has no efficient exact answer."""
    scores, words = chain.emission.best()
    potentials = chain.emission.potentials(tokens).widen(len(scores))
    table = torch.cat([potentials.table, scores.unsqueeze(0)])
    rows = torch.where(tokens < 0, len(potentials.table), potentials.rows)
    path, log_prob = mode(chain.prior, chain.transition, Potentials(table, rows), lengths)
    return torch.where((tokens < 0) & (path >= 0), words[path.clamp(min=0)], tokens), log_prob
