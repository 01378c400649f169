"""Guidance: exact for the HMM itself; always satisfied by n-grams, LSTMs and transformers; unbiased with particles."""

from __future__ import annotations

import re
from itertools import product as all_pairs
from typing import Any

import numpy as np
import pytest
import torch

import trellis
from trellis.constraints import Alphabet, Constraint, anything, banned, begins, contains, ends, length
from trellis.emissions import Categorical
from trellis.errors import TrellisError
from trellis.families.hmm.parameters.given import PartsParams
from trellis.inference.prefixes import Prefix
from trellis.models.guide import Guide, Particles
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.testing.problems import distributions, seeded
from trellis.transitions import Dense

EXACT, CLOSE = 1e-10, 1e-5
WORDS = ["a", "b", "c", "<eos>"]
SENTENCES = ["a b c", "b a", "c c a", "a", "b c b a", "c b"] * 20
CONSTRAINT = contains("a b") & banned("c c")
MOST = 5


def random_hmm(words: list[str], states: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> trellis.HMM:
    draw = seeded(seed)
    start, matrix = distributions(draw, states).to(dtype), distributions(draw, states, states).to(dtype)
    table = (distributions(draw, states, len(words)) ** 3).to(dtype)
    emission = Categorical((table / table.sum(-1, keepdim=True)).T.log().contiguous(), None, states)
    return trellis.HMM(trellis.Vocabulary(words, [1] * len(words)), PartsParams(start, Dense(matrix), emission)).eval()


@pytest.fixture(scope="module")
def hmm() -> trellis.HMM:
    return random_hmm(WORDS)


@pytest.fixture(scope="module", params=["ngram", "lstm"])
def other(request: pytest.FixtureRequest) -> Any:
    settings = {"ngram": {"order": 3}, "lstm": {"dim": 4, "epochs": 1}}[request.param]
    vocab = {"tokenizer": "whitespace", "unk": False}
    return trellis.train(SENTENCES, family=request.param, device="cpu", **settings, **vocab).model


def matching(model: Any, seed: int = 1) -> trellis.HMM:
    """A random HMM with the vocabulary of a model."""
    return random_hmm(model.vocab.words, seed=seed)


def test_an_hmm_that_guides_itself_is_conditioned(hmm: trellis.HMM) -> None:
    guide = trellis.guide(hmm, CONSTRAINT, 2, MOST)
    with torch.no_grad():
        for prefix in [(), (0,), (1, 2), (0, 1), (0, 1, 2, 0)]:
            _, state = hmm.score(torch.tensor([prefix], dtype=torch.int64), hmm.sentence_start(1))
            state = state if prefix else hmm.sentence_start(1)
            guided = (hmm.forecast(state) + guide.corrections([Prefix(prefix)]))[0].exp()
            expected = guide.product.next_tokens(guide.positions([Prefix(prefix)]))[0].exp()
            np.testing.assert_allclose(guided, expected, rtol=EXACT)
            np.testing.assert_allclose(guided.sum(), 1.0, rtol=EXACT)


def satisfying(model: Any, constraint: Constraint, least: int = 0, most: int = MOST) -> dict[str, float]:
    """All sentences that satisfy a constraint, with their probabilities."""
    words = [word for word in model.vocab.words if word != "<eos>"]
    rows = [list(row) for n in range(least, most + 1) for row in all_pairs(words, repeat=n)]
    automaton = constraint.compile(model.vocab)
    kept = [row for row in rows if automaton.accepts(model.vocab.encode(row))]
    return dict(zip(map(" ".join, kept), np.exp(model.log_prob(kept)), strict=True))


def test_samples_of_an_hmm_that_guides_itself(hmm: trellis.HMM) -> None:
    expected = satisfying(hmm, CONSTRAINT)
    texts, weights = list(expected), np.array(list(expected.values()))
    drawn = trellis.guide(hmm, CONSTRAINT, most=MOST, cache=8000).sample(hmm, 4000, seed=3)
    assert chi_square(np.array([texts.index(text) for text in drawn]), weights / weights.sum()) > SMALLEST_P


def test_every_guided_text_satisfies_the_constraint(other: Any) -> None:
    guide = trellis.guide(matching(other), CONSTRAINT, 3, 8)
    for text in guide.sample(other, 40):
        assert "a b" in text
        assert "c c" not in text
        assert 3 <= len(text.split()) <= 8
    after = trellis.guide(matching(other), begins("b") & length(2), most=4).sample(other, 5, prompt="a c")
    assert all(text.startswith("a c b") and len(text.split()) <= 6 for text in after)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0])
def test_the_weight_of_the_correction(hmm: trellis.HMM, alpha: float) -> None:
    full, weighted = trellis.guide(hmm, CONSTRAINT, most=4), trellis.guide(hmm, CONSTRAINT, most=4, alpha=alpha)
    one, other = (g.corrections([Prefix((0,)), Prefix(())]) for g in (full, weighted))
    excluded = one == -torch.inf
    assert excluded.any()
    assert other[excluded].eq(-torch.inf).all()
    np.testing.assert_allclose(other[~excluded], alpha * one[~excluded], rtol=EXACT)


def test_particles_of_the_hmm_itself_are_exact(hmm: trellis.HMM) -> None:
    guide = trellis.guide(hmm, CONSTRAINT, most=MOST)
    found = guide.particles(hmm, 50)
    np.testing.assert_allclose(found.weights, 1 / 50, rtol=1e-8)
    np.testing.assert_allclose([found.effective, found.least_effective], 50, rtol=1e-8)
    np.testing.assert_allclose(found.log_prob, hmm.constrain(CONSTRAINT, most=MOST).log_prob(), rtol=1e-8)


def estimates(guide: Guide, model: Any, runs: int, particles: int) -> list[Particles]:
    return [guide.particles(model, particles, seed=seed) for seed in range(runs)]


def test_particles_are_unbiased(other: Any) -> None:
    """The mean of 60 estimates of p(constraint) is within four standard errors of the enumeration, and so are the
    weighted frequencies of the texts."""
    expected = satisfying(other, CONSTRAINT)
    found = estimates(trellis.guide(matching(other), CONSTRAINT, most=MOST), other, 60, 40)
    probs = np.exp([one.log_prob for one in found])
    assert abs(probs.mean() - sum(expected.values())) < 4 * probs.std() / np.sqrt(len(probs))
    assert any(one.least_effective < 20 for one in found)  # some were resampled
    assert all(1 <= one.least_effective <= one.effective + 40 for one in found)
    top = max(expected, key=expected.__getitem__)
    shares = np.array([one.weights[[text == top for text in one.texts]].sum() for one in found]) * probs
    assert abs(shares.mean() - expected[top]) < 4 * shares.std() / np.sqrt(len(shares))


def without(hmm: trellis.HMM, word: int) -> trellis.HMM:
    """The HMM, in which no state emits this word."""
    start, transition, emission = hmm.parts()
    table = emission.dense().exp().index_fill(0, torch.tensor(word), 0.0)
    emission = Categorical((table / table.sum(0)).log(), None, hmm.num_states)
    return trellis.HMM(hmm.vocab, PartsParams(start, transition, emission)).eval()


def test_impossible_constraints_are_refused(hmm: trellis.HMM) -> None:
    guide = trellis.guide(hmm, contains("a", 5), most=4)
    for generate in (guide.sample, guide.particles):
        with pytest.raises(TrellisError, match="No text of 0 to 4 tokens after the prompt satisfies the constraint"):
            generate(hmm, 4)


def test_a_guided_model_that_cannot_satisfy_the_constraint(hmm: trellis.HMM) -> None:
    guide, other = trellis.guide(hmm, ends("a"), most=4), without(hmm, 0)
    with pytest.raises(TrellisError, match="No token that the constraint allows has a positive probability"):
        guide.sample(other, 4)
    with pytest.raises(TrellisError, match="gives probability zero to every sampled text"):
        guide.particles(other, 4)


def test_particles_that_die_later_have_no_weight(hmm: trellis.HMM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the messages of all positions after two tokens underflowed: tokens drawn there mean nothing."""
    guide = trellis.guide(hmm, CONSTRAINT, most=MOST)
    log_prob = guide.product.log_prob
    dead = 2
    monkeypatch.setattr(guide.product, "log_prob", lambda at: log_prob(at).masked_fill(at.steps == dead, -torch.inf))
    with pytest.raises(TrellisError, match="gives probability zero to every sampled text"):
        guide.particles(hmm, 8)


def test_misuse(hmm: trellis.HMM, other: Any) -> None:
    guide = trellis.guide(hmm, CONSTRAINT, most=MOST)
    with pytest.raises(TrellisError, match="Only an HMM can be a guide"):
        trellis.guide(other, CONSTRAINT)
    with pytest.raises(TrellisError, match="must have the 4 tokens of the HMM"):
        guide.sample(random_hmm([*WORDS, "d"]))
    with pytest.raises(TrellisError, match="must have the 4 tokens of the HMM, with the same ids"):
        guide.sample(random_hmm(["b", "a", "c", "<eos>"]))
    with pytest.raises(TrellisError, match=r"Only a language model of Trellis can be guided here, not 'lstm'\."):
        guide.sample("lstm")  # type: ignore[arg-type]
    for n in (1.5, 0, "2"):
        with pytest.raises(TrellisError, match=f"The number of texts is {n}; pass an integer from 1 to 1,000,000"):
            guide.sample(hmm, n)  # type: ignore[arg-type]
        with pytest.raises(TrellisError, match=f"The number of texts is {n}; "):
            guide.particles(hmm, n)  # type: ignore[arg-type]
    with pytest.raises(TrellisError, match=r"Pass one prompt, not 2\."):
        guide.sample(hmm, prompt=["a", "b"])
    assert guide.sample(hmm, prompt=["a b"]) == guide.sample(hmm, prompt="a b")
    with pytest.raises(TrellisError, match="alphabet has no end can only be used as a processor"):
        trellis.guide(hmm, contains("1"), alphabet=Alphabet.of_ids(4)).sample(hmm)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"alpha": -1.0}, "The weight alpha of the guide is -1.0; pass a number that is not negative."),
        ({"alpha": "1"}, "The weight alpha of the guide is '1'; pass"),
        ({"alpha": float("nan")}, "The weight alpha of the guide is nan; pass"),
        ({"alpha": float("inf")}, "The weight alpha of the guide is inf; pass"),
        ({"least": 5, "most": 3}, "Cannot generate 5 to 3 tokens; pass 0 <= least <= most."),
        ({"least": -1}, "The smallest number of tokens is -1; pass an integer from 0 to 1,000,000."),
        ({"most": -1}, "The largest number of tokens is -1; pass an integer from 0 to 1,000,000."),
        ({"most": 2.5}, "The largest number of tokens is 2.5; pass"),
        ({"most": "5"}, "The largest number of tokens is 5; pass"),
        ({"cache": -1}, "The number of prefixes in the cache is -1; pass an integer of at least 0."),
        ({"alphabet": Alphabet.of_ids(9, 3)}, "The alphabet has 9 tokens, but the HMM has 4."),
        ({"alphabet": Alphabet.of_ids(4, 2)}, "ends texts with token 2, but the <eos> of the HMM is token 3; pass"),
        ({"alphabet": "gpt2"}, "Pass an alphabet, such as Alphabet.of_tokenizer(tokenizer), not str."),
        ({"alphabet": Alphabet.of_ids(4), "least": 2, "most": 3}, "A stream has exactly 3 tokens; leave out `least`"),
        ({"alphabet": Alphabet.of_ids(4), "most": 0}, "The largest number of tokens is 0; pass an integer from 1 to"),
    ],
)
def test_arguments_of_a_guide(hmm: trellis.HMM, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrellisError, match=re.escape(sentence)):
        trellis.guide(hmm, anything(), **arguments)


def test_a_guide_without_a_cache(hmm: trellis.HMM) -> None:
    kept, none = trellis.guide(hmm, CONSTRAINT, most=MOST), trellis.guide(hmm, CONSTRAINT, most=MOST, cache=0)
    assert kept.sample(hmm, 5) == none.sample(hmm, 5)
