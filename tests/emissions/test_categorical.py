"""Categorical emissions: tables, supports, and inference over live states against the dense masked HMM."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from trellis.emissions import Categorical
from trellis.engines import reference
from trellis.inference import discrete, queries
from trellis.inference.discrete import to_dense
from trellis.inference.infilling import best_words
from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.testing.problems import distributions
from trellis.transitions import Dense
from trellis.types import Belief

STATES, WORDS, LIVE, BATCH, STEPS = 8, 6, 4, 5, 7
GAPS = pytest.mark.parametrize("gaps", [False, True])


class Pair(NamedTuple):
    """One HMM twice: over the live states of each word, and over all states with zeros."""

    sparse: Categorical
    full: Categorical
    prior: Belief
    transition: Dense
    tokens: Tensor
    lengths: Tensor

    def problems(self) -> tuple[tuple, tuple]:
        sparse, full = (
            (self.prior, self.transition, emission.potentials(self.tokens), self.lengths)
            for emission in (self.sparse, self.full)
        )
        return sparse, full

    def everywhere(self, probs: Tensor) -> Tensor:
        """[B, T, k] at the live states (or over all) -> [B, T, K]."""
        if probs.shape[-1] == STATES:
            return probs
        return probs.new_zeros(BATCH, STEPS, STATES).scatter(-1, self.sparse.support[self.tokens.clamp(min=0)], probs)


def make_pair(gaps: bool, seed: int = 0) -> Pair:
    """Word v may be emitted by the states v, v + 1, ... (modulo K), shuffled: a state belongs to many words."""
    generator = torch.Generator().manual_seed(seed)
    support = torch.stack([(word + torch.randperm(LIVE, generator=generator)) % STATES for word in range(WORDS)])
    allowed = torch.zeros(WORDS, STATES, dtype=torch.bool).scatter(1, support, True)
    probs = distributions(generator, STATES, WORDS).T * allowed
    full = (probs / probs.sum(0).clamp(min=1e-30)).log()
    tokens = torch.randint(WORDS, (BATCH, STEPS), generator=generator)
    if gaps:
        tokens[torch.rand(BATCH, STEPS, generator=generator) < 0.4] = -1
    lengths = torch.randint(1, STEPS + 1, (BATCH,), generator=generator)
    prior, matrix = distributions(generator, BATCH, STATES), distributions(generator, STATES, STATES, zeros=0.2)
    sparse = Categorical(full.gather(1, support), support, STATES)
    return Pair(sparse, Categorical(full, None, STATES), Belief(prior), Dense(matrix), tokens, lengths)


@GAPS
def test_score_filter_and_smooth(gaps: bool) -> None:
    pair = make_pair(gaps)
    sparse, full = pair.problems()
    (log_norms, belief), (expected, expected_belief) = discrete.score(*sparse), discrete.score(*full)
    assert_close(log_norms, expected)
    assert_close(to_dense(belief, STATES), expected_belief.probs)
    one, other = discrete.filter(*sparse), discrete.filter(*full)
    assert_close(one.log_norms, other.log_norms)
    assert_close(pair.everywhere(one.probs), other.probs)
    assert_close(to_dense(one.belief, STATES), other.belief.probs)
    assert_close(pair.everywhere(discrete.smooth(*sparse).probs), discrete.smooth(*full).probs)


@GAPS
def test_mode(gaps: bool) -> None:
    sparse, full = make_pair(gaps).problems()
    (path, score), (expected_path, expected_score) = discrete.viterbi(*sparse), discrete.viterbi(*full)
    assert_close(score, expected_score)
    assert path.equal(expected_path)


@GAPS
def test_counts(gaps: bool) -> None:
    pair = make_pair(gaps)
    sparse, full = pair.problems()
    one, other = discrete.counts(*sparse)[0], discrete.counts(*full)[0]
    for name in ("log_likelihood", "start", "transition"):
        assert_close(getattr(one, name), getattr(other, name))
    assert_close(one.emission, other.emission.gather(1, pair.sparse.support))


@GAPS
def test_samples_stay_among_the_live_states(gaps: bool) -> None:
    pair = make_pair(gaps)
    for seed in range(20):
        path = discrete.sample_posterior(*pair.problems()[0], torch.Generator().manual_seed(seed))
        word_probs = pair.full.dense()[pair.tokens.clamp(min=0), path.clamp(min=0)]
        assert ((word_probs > -torch.inf) | (pair.tokens < 0) | (path < 0)).all()


@GAPS
def test_gradients(gaps: bool) -> None:
    pair = make_pair(gaps)
    found = []
    for emission in (pair.sparse, pair.full):
        leaves = [x.clone().requires_grad_() for x in (pair.prior.probs, pair.transition.matrix, emission.table)]
        potentials = Categorical(leaves[2], emission.support, STATES).potentials(pair.tokens)
        log_norms, belief = discrete.score(Belief(leaves[0]), Dense(leaves[1]), potentials, pair.lengths)
        loss = log_norms.sum() + to_dense(belief, STATES).square().sum()
        found.append(torch.autograd.grad(loss, leaves))
    (prior, matrix, table), expected = found
    assert_close(prior, expected[0])
    assert_close(matrix, expected[1])
    assert_close(table, expected[2].gather(1, pair.sparse.support))


@GAPS
def test_queries(gaps: bool) -> None:
    pair = make_pair(gaps)
    sparse, full = (queries.Chain(pair.prior, pair.transition, emission) for emission in (pair.sparse, pair.full))
    known = torch.rand(pair.tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    args = (pair.tokens, pair.lengths)
    assert_close(*(chain.emission.predict(chain.prior.probs) for chain in (sparse, full)))
    assert_close(queries.log_marginal(sparse, *args), queries.log_marginal(full, *args))
    assert_close(
        queries.log_conditional(sparse, pair.tokens, known, pair.lengths),
        queries.log_conditional(full, pair.tokens, known, pair.lengths),
    )
    assert_close(queries.word_given_rest(sparse, *args), queries.word_given_rest(full, *args))
    best = [best_words(chain, *args, queries.gap_words(chain, *args).argmax(-1)) for chain in (sparse, full)]
    assert best[0].tokens.equal(best[1].tokens)
    assert_close(best[0].log_probs, best[1].log_probs)


def test_windows_carry_the_belief_of_live_states() -> None:
    pair = make_pair(gaps=False)
    potentials = pair.sparse.potentials(pair.tokens)
    whole = discrete.score(pair.prior, pair.transition, potentials)[0]
    first, belief = discrete.score(pair.prior, pair.transition, pair.sparse.potentials(pair.tokens[:, :3]))
    prior = Belief(reference.move(belief, pair.transition, None))
    second, _ = discrete.score(prior, pair.transition, pair.sparse.potentials(pair.tokens[:, 3:]))
    assert_close(torch.cat([first, second], 1), whole)


def test_potentials() -> None:
    pair = make_pair(gaps=True)
    sparse, full = pair.sparse.potentials(pair.tokens), pair.full.potentials(pair.tokens)
    assert sparse.ids is not None
    assert full.ids is None
    assert_close(sparse.widen(STATES).gather(), full.gather())
    missing = full.gather()[pair.tokens < 0]
    assert len(missing) > 0
    assert (missing == 0).all()


def test_dense_predict_and_best() -> None:
    pair = make_pair(gaps=False)
    assert_close(pair.sparse.dense(), pair.full.table)
    probs = distributions(torch.Generator().manual_seed(2), BATCH, STEPS, STATES)
    expected = torch.einsum("btz,vz->btv", probs, pair.full.table.exp()).log()
    for emission in (pair.sparse, pair.full):
        assert_close(emission.predict(probs), expected)
        scores, words = emission.best()
        assert_close(scores, pair.full.table.amax(0))
        assert_close(pair.full.table.gather(0, words[None])[0], scores)


@pytest.mark.parametrize("sparse", [False, True])
def test_sampled_words_have_the_right_distribution(sparse: bool) -> None:
    pair = make_pair(gaps=False)
    emission = pair.sparse if sparse else pair.full
    states = torch.tensor([0, 3, 5]).repeat(1000, 1)
    words = emission.sample(states, torch.Generator().manual_seed(3))
    assert words.shape == states.shape
    for column, state in enumerate(states[0].tolist()):
        probs = pair.full.table[:, state].exp().numpy()
        assert chi_square(words[:, column].numpy(), probs) > SMALLEST_P


@pytest.mark.parametrize("which", ["sparse", "full"])
def test_a_few_states_at_a_time(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emission = getattr(make_pair(False), which)
    monkeypatch.setattr("trellis.emissions.categorical.ENTRIES", 2 * len(emission.table))
    dense, some = emission.dense(), torch.tensor([2, 0])
    assert_close(emission.columns(some).exp(), dense[:, some].exp())
    assert_close(torch.cat(list(emission.by_state()), -1).exp(), dense.exp())
    assert_close(emission.best()[0], dense.max(0).values)
    assert_close(emission.log_totals(), dense.logsumexp(0))
