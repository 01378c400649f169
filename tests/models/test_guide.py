"""Guidance: exact for the HMM itself; always satisfied by n-grams, LSTMs and transformers; unbiased with particles."""

from __future__ import annotations

from itertools import product as all_pairs
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import trellis
from trellis.constraints import Alphabet, Constraint, banned, begins, contains, ends, length
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


def test_misuse(hmm: trellis.HMM, other: Any) -> None:
    with pytest.raises(TrellisError, match="Only an HMM can be a guide"):
        trellis.guide(other, CONSTRAINT)
    with pytest.raises(TrellisError, match="must have the 4 tokens of the HMM"):
        trellis.guide(hmm, CONSTRAINT).sample(random_hmm([*WORDS, "d"]))
    with pytest.raises(TrellisError, match="must not be negative"):
        trellis.guide(hmm, CONSTRAINT, alpha=-1.0)
    with pytest.raises(TrellisError, match="alphabet has 9 tokens, but the HMM has 4"):
        trellis.guide(hmm, contains("1"), alphabet=Alphabet.of_ids(9, 3))
    with pytest.raises(TrellisError, match="No text after the prompts can satisfy"):
        trellis.guide(hmm, contains("a", 5), most=4).processor()(torch.tensor([[0]]), scores_of(1, 4))
    with pytest.raises(TrellisError, match="No token that the constraint allows"):
        trellis.guide(hmm, contains("a", 5), most=4).sample(hmm)


def test_texts_that_cannot_satisfy_the_constraint_end(hmm: trellis.HMM) -> None:
    """Beam search keeps hypotheses of score -inf if it has no others."""
    processor = trellis.guide(hmm, CONSTRAINT, most=4).processor()
    processor(torch.tensor([[0], [0]]), scores_of(2, 4))
    found = processor(torch.tensor([[0, 2, 2], [0, 0, 1]]), scores_of(2, 4))
    assert found[0].isfinite().tolist() == [False, False, False, True]
    assert found[1].isfinite().all()


def scores_of(rows: int, size: int = 6) -> Tensor:
    return torch.randn(rows, size, generator=seeded(rows), dtype=torch.float64)


def test_the_processor_skips_padding_and_tokens_that_the_hmm_lacks(hmm: trellis.HMM) -> None:
    guide = trellis.guide(hmm, CONSTRAINT, most=4)
    scores = scores_of(2)
    padded = torch.tensor([[5, 5, 0, 1], [5, 2, 0, 0]])
    by_pad = guide.processor(pad=5)(padded, scores)
    by_mask = guide.processor(attention_mask=torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]))(padded, scores)
    assert by_pad.equal(by_mask)
    for row, prompt in enumerate([(0, 1), (2, 0, 0)]):
        expected = scores[row].log_softmax(-1)[:4] + guide.corrections([Prefix((), prompt)])[0]
        assert by_pad[row, :4].allclose(expected, rtol=EXACT)
        assert by_pad[row, 4:].eq(-torch.inf).all()  # tokens that the HMM does not have


def test_the_processor_follows_reordered_rows_and_leaves_ended_ones(hmm: trellis.HMM) -> None:
    guide, scores = trellis.guide(hmm, ends("a"), most=4, cache=3), scores_of(3, 4)
    processor = guide.processor()
    processor(torch.tensor([[1], [2], [2]]), scores)
    found = processor(torch.tensor([[2, 0, 1], [2, 0, 3], [1, 1, 0]]), scores)
    assert found[1].equal(scores[1])
    for row, prefix in ((0, Prefix((0, 1), (2,))), (2, Prefix((1, 0), (1,)))):
        assert found[row].allclose(scores[row].log_softmax(-1) + guide.corrections([prefix])[0], rtol=EXACT)


def test_a_processor_is_for_one_call_of_generate(hmm: trellis.HMM) -> None:
    processor = trellis.guide(hmm, ends("a"), most=4).processor()
    processor(torch.tensor([[1, 0], [2, 0]]), scores_of(2, 4))
    processor(torch.tensor([[2, 0, 1], [2, 0, 2], [1, 0, 0]]), scores_of(3, 4))
    for prompt in ([[0, 1]], [[1]], [[1, 1, 0]]):
        with pytest.raises(TrellisError, match="for one call of generate"):
            processor(torch.tensor(prompt), scores_of(1, 4))


def test_a_processor_that_samples(hmm: trellis.HMM) -> None:
    guide, scores = trellis.guide(hmm, CONSTRAINT, most=4, cache=3), scores_of(1, 5)
    rows = torch.tensor([[1]]).expand(4000, -1)
    found = guide.processor(seed=0)(rows, scores.expand(4000, -1))
    assert (found == 0).sum(-1).eq(1).all()
    assert (found > -torch.inf).sum(-1).eq(1).all()
    expected = guide.processor()(rows[:1], scores).softmax(-1)[0]
    assert chi_square(found.argmax(-1).numpy(), expected.numpy()) > SMALLEST_P


@pytest.fixture(scope="module")
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=5, n_layer=1, n_head=2, n_embd=8, n_positions=32, bos_token_id=4, eos_token_id=3, pad_token_id=3
    )  # one token more than the HMM has: 4
    return transformers.GPT2LMHeadModel(config).double().eval()


def generate(gpt2: Any, processor: Any, prompts: Tensor, mask: Tensor | None = None, **options: Any) -> list[list[int]]:
    """The tokens that follow each prompt, up to <eos>."""
    mask = torch.ones_like(prompts) if mask is None else mask
    rows = gpt2.generate(prompts, attention_mask=mask, logits_processor=[processor], max_new_tokens=MOST + 1, **options)
    rows = rows[:, prompts.shape[1] :].tolist()
    assert all(3 in row for row in rows)
    return [row[: row.index(3)] for row in rows]


def test_transformers_sample_what_satisfies_the_constraint(hmm: trellis.HMM, gpt2: Any) -> None:
    guide, automaton = trellis.guide(hmm, CONSTRAINT, most=MOST), CONSTRAINT.compile(hmm.vocab)
    prompts, mask = torch.tensor([[3, 4, 0], [4, 2, 1]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    torch.manual_seed(1)
    for options in (
        {"do_sample": True, "num_return_sequences": 8},
        {"do_sample": True, "num_return_sequences": 8, "num_beams": 1},
        {"num_beams": 4},
        {"num_beams": 3, "do_sample": True},
    ):
        seed = 0 if "num_beams" not in options else None
        found = generate(gpt2, guide.processor(attention_mask=mask, seed=seed), prompts, mask, **options)
        assert len(found) == 2 * options.get("num_return_sequences", 1)
        assert all(automaton.accepts(row) and len(row) <= MOST for row in found)


def test_beams_find_the_best_text_of_the_guided_model(hmm: trellis.HMM, gpt2: Any) -> None:
    """With more beams than texts, and lengths not rewarded, the result is the mode of p(text) 1[constraint]."""
    automaton, prompt, most = CONSTRAINT.compile(hmm.vocab), [4, 0], 3
    rows = [list(row) for n in range(most + 1) for row in all_pairs(range(3), repeat=n) if automaton.accepts(row)]
    with torch.no_grad():
        log_probs = [log_prob(gpt2, prompt, [*row, 3]) for row in rows]
    processor = trellis.guide(hmm, CONSTRAINT, most=most).processor()
    found = generate(gpt2, processor, torch.tensor([prompt]), num_beams=60, length_penalty=0.0)
    assert found == [rows[int(np.argmax(log_probs))]]


def log_prob(gpt2: Any, prompt: list[int], tokens: list[int]) -> float:
    logits = gpt2(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return float(logits.gather(-1, torch.tensor(tokens).unsqueeze(-1)).sum())
