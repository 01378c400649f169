"""Queries against the enumeration of all sentences and all paths."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from trellis.emissions import Categorical
from trellis.inference import queries
from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, Paths, cells, chi_square, completions, log, marginal, sentences
from trellis.testing.problems import distributions, seeded, transition_of
from trellis.transitions import Dense
from trellis.transitions.varying import Blocks
from trellis.types import Belief

STATES, WORDS = 3, 3
examples = settings(max_examples=30, deadline=None, derandomize=True)


class Case:
    """A chain with random numbers, the same as arrays, and what its sentences of `steps` words look like."""

    def __init__(self, seed: int, batch: int, steps: int, sparse: bool, varying: bool, zeros: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        leading = (steps - 1,) if varying else ()
        prior = distributions(generator, batch, STATES, zeros=zeros)
        matrix = distributions(generator, *leading, STATES, STATES, zeros=zeros)
        emission = distributions(generator, STATES, WORDS, zeros=zeros)
        support = None
        if sparse:
            support = torch.tensor([[word, (word + 1) % STATES] for word in range(WORDS)])
            allowed = torch.zeros(WORDS, STATES, dtype=torch.bool).scatter(1, support, True).T
            emission = (emission + 0.1) * allowed
            emission = emission / emission.sum(-1, keepdim=True)
        table = emission.T.log() if support is None else emission.T.log().gather(1, support)
        self.chain = queries.Chain(
            Belief(prior), transition_of(matrix), Categorical(table.contiguous(), support, STATES)
        )
        self.tokens = torch.randint(-1, WORDS, (batch, steps), generator=generator)
        self.prior, self.emission = prior.numpy(), emission.numpy()
        self.matrices = matrix.expand(steps - 1, STATES, STATES).numpy()

    def joint(self, b: int, steps: int) -> np.ndarray:
        return sentences(self.prior[b], self.matrices[: steps - 1], self.emission)

    def paths(self, b: int, tokens: np.ndarray) -> Paths:
        weights = np.where(tokens[:, None] < 0, 1.0, self.emission.T[tokens])
        return Paths(self.prior[b], self.matrices[: len(tokens) - 1], weights)


@pytest.mark.parametrize("leading", [(4,), (3, 4)], ids=["shared", "per sequence"])
def test_transitions_of_reversed_sequences(leading: tuple[int, ...]) -> None:
    matrix = distributions(seeded(0), *leading, STATES, STATES)
    lengths = torch.tensor([5, 2, 4])
    found = queries.reverse(Blocks(matrix), lengths)
    assert isinstance(found, Blocks)
    for b, (own, length) in enumerate(zip(matrix.expand(3, 4, STATES, STATES), lengths.tolist(), strict=True)):
        assert_close(found.dense()[b, : length - 1], own[: length - 1].flip(0).mT)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        seed=draw(st.integers(0, 2**31)),
        batch=draw(st.integers(1, 3)),
        steps=draw(st.integers(1, 4)),
        sparse=draw(st.booleans()),
        varying=draw(st.booleans()),
        zeros=draw(st.sampled_from([0.0, 0.5])),
    )


def ratio(joint: float, condition: float) -> float:
    """log p(a, b) / p(b), -inf where b is impossible."""
    return float(log(joint / condition)) if condition > 0 else -np.inf


ALLOWED = [0, 2]


def restricted(case: Case, restrict: bool) -> tuple[queries.Chain, list[int]]:
    """The chain, and the words that a gap may hold."""
    if not restrict:
        return case.chain, list(range(WORDS))
    return case.chain.only(torch.tensor([word in ALLOWED for word in range(WORDS)])), ALLOWED


@examples
@given(cases())
def test_next_word(case: Case) -> None:
    assert_close(case.chain.emission.predict(case.chain.prior.probs), log(case.prior @ case.emission))


@examples
@given(cases(), st.integers(0, 2**16), st.booleans())
def test_marginal_and_conditional_of_any_subset(case: Case, seed: int, restrict: bool) -> None:
    tokens, (chain, allowed) = case.tokens, restricted(case, restrict)
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, tokens.shape[1] + 1, (len(tokens),), generator=generator)
    known = torch.rand(tokens.shape, generator=generator) < 0.5
    marginals, conditionals = [], []
    for b, n in enumerate(lengths.tolist()):
        joint, words = case.joint(b, n), tokens[b, :n].numpy()
        condition = marginal(joint, np.where(known[b, :n], words, -1), allowed)
        marginals.append(log(marginal(joint, words, allowed)))
        conditionals.append(ratio(marginal(joint, words, allowed), condition))
    assert_close(queries.log_marginal(chain, tokens, lengths), np.array(marginals))
    assert_close(queries.log_conditional(chain, tokens, known, lengths), np.array(conditionals))


@examples
@given(cases())
def test_word_given_context(case: Case) -> None:
    steps = case.tokens.shape[1]
    context = case.tokens[:, :-1]
    before = torch.arange(steps).expand(len(context), -1) < steps - 1
    for word in range(WORDS):
        tokens = torch.cat([context, torch.full((len(context), 1), word)], 1)
        expected = []
        for b in range(len(tokens)):
            joint, gap = case.joint(b, steps), np.append(context[b], -1)
            expected.append(ratio(marginal(joint, tokens[b].numpy()), marginal(joint, gap)))
        assert_close(queries.log_conditional(case.chain, tokens, before), np.array(expected))


@examples
@given(cases(), st.booleans(), st.booleans())
def test_word_given_everything_else(case: Case, ragged: bool, restrict: bool) -> None:
    batch, steps = case.tokens.shape
    chain, allowed = restricted(case, restrict)
    lengths = torch.arange(batch) % steps + 1 if ragged else torch.full((batch,), steps)
    answer = queries.word_given_rest(chain, case.tokens, lengths)
    for b, n in enumerate(lengths.tolist()):
        joint, words = case.joint(b, n), case.tokens[b, :n].numpy()
        for t, word in product(range(n), range(WORDS)):
            rest, whole = words.copy(), words.copy()
            rest[t], whole[t] = -1, word
            numerator = marginal(joint, whole, allowed) if word in allowed else 0.0
            assert_close(answer[b, t, word], np.array(ratio(numerator, marginal(joint, rest, allowed))))


@examples
@given(cases(), st.booleans(), st.booleans())
def test_words_of_gaps(case: Case, ragged: bool, restrict: bool) -> None:
    batch, steps = case.tokens.shape
    chain, allowed = restricted(case, restrict)
    lengths = torch.arange(batch) % steps + 1 if ragged else torch.full((batch,), steps)
    possible = np.array([marginal(case.joint(b, n), case.tokens[b, :n].numpy(), allowed) > 0
                         for b, n in enumerate(lengths.tolist())])  # fmt: skip
    words = queries.gap_words(chain, case.tokens, lengths)
    gaps = (case.tokens < 0) & (torch.arange(steps) < lengths.unsqueeze(-1))
    of_possible = torch.from_numpy(possible)[gaps.nonzero()[:, 0]]
    assert_close(words[of_possible], queries.word_given_rest(chain, case.tokens, lengths)[gaps][of_possible])
    assert (words[~of_possible] == -torch.inf).all()


@examples
@given(cases(), st.booleans())
def test_cavity(case: Case, ragged: bool) -> None:
    batch, steps = case.tokens.shape
    lengths = torch.arange(batch) % steps + 1 if ragged else torch.full((batch,), steps)
    states = queries.cavity(case.chain, case.chain.potentials(case.tokens), lengths)
    for b, n in enumerate(lengths.tolist()):
        assert_close(states[b, :n], case.paths(b, case.tokens[b, :n].numpy()).cavity())
        assert (states[b, n:] == 0).all()


def test_a_word_that_contradicts_the_rest_does_not_change_what_the_rest_says() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    emission = Categorical(eye.log(), None, 2)
    chain = queries.Chain(Belief(torch.full((1, 2), 0.5, dtype=torch.float64)), Dense(eye), emission)
    answer = queries.word_given_rest(chain, torch.tensor([[0, 1, 0]])).exp()
    assert_close(answer, np.array([[[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]]))


@pytest.mark.parametrize("restrict", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("tokens", [[0, -1, 2, -1], [-1, -1, 1, 1], [-1, -1, -1, -1]])
def test_gaps_are_drawn_jointly(sparse: bool, tokens: list[int], restrict: bool) -> None:
    draws = 3000
    case = Case(1, 1, 4, sparse, varying=True, zeros=0.2)
    chain, allowed = restricted(case, restrict)
    many = chain._replace(prior=Belief(chain.prior.probs.expand(draws, -1)))
    words = torch.tensor([tokens]).expand(draws, -1)
    filled = queries.sample_gaps(many, words, generator=torch.Generator().manual_seed(4)).numpy()
    possible = np.ix_(*completions(np.array(tokens), allowed))
    probs = np.zeros((WORDS,) * 4)
    probs[possible] = case.joint(0, 4)[possible]
    assert chi_square(cells(filled, WORDS), probs.ravel() / probs.sum()) > SMALLEST_P


def test_gaps_past_the_end_stay() -> None:
    case = Case(2, 2, 4, sparse=True, varying=False, zeros=0.0)
    tokens: Tensor = torch.full((2, 4), -1)
    lengths = torch.tensor([2, 4])
    filled = queries.sample_gaps(case.chain, tokens, lengths, torch.Generator().manual_seed(0))
    assert ((filled < 0) == (torch.arange(4) >= lengths[:, None])).all()


def test_impossible_context_is_minus_infinity() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    chain = queries.Chain(Belief(eye[:1]), Dense(eye), Categorical(eye.log(), None, 2))
    tokens, known = torch.tensor([[1, 0]]), torch.tensor([[True, False]])
    assert queries.log_marginal(chain, tokens).item() == -torch.inf
    assert queries.log_conditional(chain, tokens, known).item() == -torch.inf
    assert (queries.word_given_rest(chain, tokens)[0, 1] == -torch.inf).all()
    assert queries.gap_words(chain, torch.tensor([[1, -1]])).tolist() == [[-torch.inf] * 2]


def test_a_gap_leaves_out_states_that_emit_no_allowed_word() -> None:
    emission = Categorical(torch.tensor([[0.5, 0.0], [0.5, 0.2], [0.0, 0.8]]).double().log(), None, 2)
    prior = Belief(torch.tensor([[0.3, 0.7]]).double())
    chain = queries.Chain(prior, Dense(torch.full((2, 2), 0.5).double()), emission)
    states, words = queries.words_of(
        chain.only(torch.tensor([True, False, False])), torch.tensor([[1.0, 0.0]]).double()
    )
    assert states.tolist() == [[1.0, 0.0]]
    assert words.exp().tolist() == [[1.0, 0.0, 0.0]]
