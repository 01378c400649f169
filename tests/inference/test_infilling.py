"""The most probable words of gaps, against the enumeration of all sentences in float64."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from trellis.emissions import Categorical
from trellis.inference.infilling import Filled, best_words
from trellis.inference.queries import Chain, gap_words
from trellis.testing.oracle import completions, sentences
from trellis.testing.problems import distributions, seeded, transition_of
from trellis.types import Belief

EXACT = 1e-10
ALLOWED = [0, 2, 3]
examples = settings(max_examples=150, deadline=None, derandomize=True)


class Problem(NamedTuple):
    """A chain, sentences with gaps, and p of every sentence of T words for each row."""

    chain: Chain
    tokens: Tensor
    lengths: Tensor
    joints: list[np.ndarray]


def problem(seed: int, batch: int, steps: int, states: int, words: int, zeros: float = 0.0) -> Problem:
    generator = seeded(seed)
    prior = distributions(generator, batch, states, zeros=zeros)
    matrix, emission = (sharp(distributions(generator, states, size, zeros=zeros)) for size in (states, words))
    chain = Chain(Belief(prior), transition_of(matrix), Categorical(emission.T.log().contiguous(), None, states))
    tokens = torch.randint(words, (batch, steps), generator=generator)
    tokens[torch.rand(batch, steps, generator=generator) < 0.6] = -1
    lengths = torch.randint(1, steps + 1, (batch,), generator=generator)
    matrices = matrix.expand(steps - 1, states, states).numpy()
    joints = [sentences(prior[b].numpy(), matrices[: n - 1], emission.numpy()) for b, n in enumerate(lengths.tolist())]
    return Problem(chain, tokens, lengths, joints)


def sharp(probs: Tensor) -> Tensor:
    """Distributions [..., n] to the fourth power: a greedy filling is often wrong."""
    return probs**4 / (probs**4).sum(-1, keepdim=True)


def search(chain: Chain, tokens: Tensor, lengths: Tensor | None = None, limit: int = 500) -> Filled:
    return best_words(chain, tokens, lengths, gap_words(chain, tokens, lengths).argmax(-1), limit)


problems = st.builds(
    problem,
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 6),
    steps=st.integers(1, 5),
    states=st.integers(1, 4),
    words=st.just(5),
    zeros=st.sampled_from([0.0, 0.4]),
)


@examples
@given(problems, st.booleans())
def test_no_filling_is_more_probable(problem: Problem, restrict: bool) -> None:
    chain, tokens, lengths, joints = problem
    allowed = ALLOWED if restrict else list(range(5))
    chain = chain.only(torch.tensor([word in allowed for word in range(5)])) if restrict else chain
    found = search(chain, tokens, lengths)
    assert found.proved.all()
    for b, n in enumerate(lengths.tolist()):
        filled, choices = found.tokens[b, :n].numpy(), completions(tokens[b, :n].numpy(), allowed)
        best = joints[b][np.ix_(*choices)].max()
        np.testing.assert_allclose(joints[b][tuple(filled)], best, rtol=EXACT)
        np.testing.assert_allclose(found.log_probs[b].exp(), best, rtol=EXACT)
        assert best == 0 or all(word in choice for word, choice in zip(filled, choices, strict=True))
        assert found.tokens[b, n:].equal(tokens[b, n:])


@examples
@given(problems, st.integers(1, 4))
def test_a_proof_holds_whatever_the_limit(problem: Problem, limit: int) -> None:
    chain, tokens, lengths, joints = problem
    found = search(chain, tokens, lengths, limit)
    for b, n in enumerate(lengths.tolist()):
        filled, choices = found.tokens[b, :n].numpy(), completions(tokens[b, :n].numpy(), list(range(5)))
        best = joints[b][np.ix_(*choices)].max()
        np.testing.assert_allclose(found.log_probs[b].exp(), joints[b][tuple(filled)], rtol=EXACT)
        assert not found.proved[b] or joints[b][tuple(filled)] >= best * (1 - EXACT)


def test_the_words_of_the_best_states_may_not_be_the_best_words() -> None:
    """State 0 emits its one word surely; the three others together make word 1 more probable."""
    emission = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * 3, dtype=torch.float64)
    prior = torch.tensor([[0.4, 0.2, 0.2, 0.2]], dtype=torch.float64)
    chain = Chain(
        Belief(prior), transition_of(torch.eye(4, dtype=torch.float64)), Categorical(emission.T.log(), None, 4)
    )
    for gaps in (1, 2, 3):
        found = search(chain, torch.full((1, gaps), -1))
        assert (found.tokens == 1).all()
        np.testing.assert_allclose(found.log_probs[0].exp(), 0.6, rtol=EXACT)


def test_the_search_stops_at_its_limit() -> None:
    chain, _, _, _ = problem(0, 1, 5, 4, 5)
    tokens = torch.full((1, 5), -1)
    stopped, ended = search(chain, tokens, limit=1), search(chain, tokens)
    assert not stopped.proved
    assert ended.proved
    assert ended.log_probs >= stopped.log_probs


def test_sentences_together_or_alone() -> None:
    chain, tokens, lengths, _ = problem(7, 4, 5, 4, 5)
    together = search(chain, tokens, lengths)
    for b in range(4):
        one = chain._replace(prior=Belief(chain.prior.probs[b : b + 1]))
        alone = search(one, tokens[b : b + 1], lengths[b : b + 1])
        assert alone.tokens.equal(together.tokens[b : b + 1])
        assert alone.log_probs.allclose(together.log_probs[b : b + 1], rtol=EXACT)


def test_bounds_that_underflow_prove_nothing() -> None:
    """The two ends favour different states so strongly that one of them underflows at the gaps."""
    table = torch.tensor([[0.0, -1000.0], [-1000.0, 0.0]], dtype=torch.float64)
    even = torch.full((1, 2), 0.5, dtype=torch.float64)
    chain = Chain(Belief(even), transition_of(torch.eye(2, dtype=torch.float64)), Categorical(table, None, 2))
    found = search(chain, torch.tensor([[0, -1, -1, 1]]))
    assert not found.proved
    assert found.log_probs[0] > -2500


@pytest.mark.parametrize("seed", range(3))
def test_a_word_between_two_gaps(seed: int) -> None:
    """Many sentences whose best filling neither the posteriors nor the Viterbi path find, with a gap at the end."""
    chain, tokens, *_ = problem(seed, 40, 3, 4, 5)
    tokens[:, 1].clamp_(min=0)
    tokens[:, [0, 2]] = -1
    matrix, emission = chain.transition.dense(), chain.emission.dense().exp().T
    found = search(chain, tokens)
    assert found.proved.all()
    for b, prior in enumerate(chain.prior.probs):
        joint = sentences(prior.numpy(), matrix.expand(2, -1, -1).numpy(), emission.numpy())
        best = joint[:, tokens[b, 1]].max()
        np.testing.assert_allclose(joint[tuple(found.tokens[b].tolist())], best, rtol=EXACT)
        np.testing.assert_allclose(found.log_probs[b].exp(), best, rtol=EXACT)
