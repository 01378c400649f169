"""n-gram models: equal to counting by the book, normalised after any context, and the same in windows."""

from __future__ import annotations

import math
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from corpora import WORDS, split, vocabulary
from ngram_oracle import KneserNey
from trellis.config import DataConfig
from trellis.corpus import Sentences, Split, Streams, Vocabulary, load_corpus
from trellis.errors import TrellisError
from trellis.families.ngram import kneser_ney
from trellis.families.ngram.model import NGram
from trellis.families.ngram.sampling import Sampler
from trellis.tasks.lm import evaluate
from trellis.testing.oracle import SMALLEST_P, chi_square

EXACT = 1e-12
GRID = 20_000  # uniform numbers
NEAR_PUBLISHED = 2.0  # perplexity


def as_split(sentences: list[list[int]]) -> Split:
    ends = np.cumsum([0] + [len(sentence) for sentence in sentences])
    return Split(np.concatenate(sentences).astype(np.int32), ends, ends[[0, -1]])


def sentences_of(text: Split) -> list[list[int]]:
    return [text.tokens[a:b].tolist() for a, b in zip(text.sentences[:-1], text.sentences[1:], strict=True)]


def after(model: NGram, history: list[int]) -> torch.Tensor:
    """p(next word | history): [V]."""
    _, state = model.score(torch.tensor([history], dtype=torch.int64), model.start(1))
    return model.forecast(state)[0].exp()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_corpus_gives_the_probabilities_of_the_book(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5), "words")
    word = st.integers(1, size - 1)
    sentences = [[*line, 0] for line in data.draw(st.lists(st.lists(word, max_size=6), min_size=1, max_size=25))]
    crossing = data.draw(st.booleans(), "crossing")
    longest = 1 + (sum(map(len, sentences)) if crossing else max(map(len, sentences)))
    order = data.draw(st.integers(1, min(4, longest)), "order")
    vocab = Vocabulary(["<eos>", *map(str, range(1, size + 1))], [1] * (size + 1))  # the last word is never seen
    with patch.object(kneser_ney, "CHUNK", data.draw(st.integers(1, 40), "chunk")):
        model = NGram.fit(vocab, as_split(sentences), order, crossing)
    truth = KneserNey(sentences, len(vocab), order, crossing)
    for _ in range(3):
        history = data.draw(st.lists(st.integers(0, size), max_size=6), "history")
        found = after(model, history)
        assert float(found.sum()) == pytest.approx(1, abs=EXACT)
        np.testing.assert_allclose(found.numpy(), truth.forecast(history), rtol=0, atol=EXACT)


def test_estimated_discounts_are_used() -> None:
    text = split(sentences=400)
    truth = KneserNey(sentences_of(text), len(WORDS), 4, crossing=False)
    assert truth.discounts[3] != [0.0, 0.5, 1.0, 1.5]
    found = after(NGram.fit(vocabulary(), text, 4), [1, 2, 4])
    np.testing.assert_allclose(found.numpy(), truth.forecast([1, 2, 4]), rtol=0, atol=EXACT)


def test_discounts() -> None:
    counts = np.repeat([0, 1, 2, 3, 4, 9], [5, 40, 20, 10, 5, 7])
    np.testing.assert_allclose(kneser_ney.discounts(counts), [0, 0.5, 2 - 1.5 * 0.5, 3 - 2 * 0.5])
    assert kneser_ney.discounts(counts[counts != 3]) is kneser_ney.FALLBACK
    assert kneser_ney.discounts(np.repeat([1, 2, 3, 4], [9, 1, 9, 9])) is kneser_ney.FALLBACK  # D[2] would be negative


@pytest.mark.parametrize("crossing", [False, True])
def test_scores_are_forecasts_in_windows_or_at_once(crossing: bool) -> None:
    model = NGram.fit(vocabulary(), split(), 3, crossing)
    tokens = torch.randint(0, len(WORDS), (3, 12), generator=torch.Generator().manual_seed(0))
    whole, _ = model.score(tokens, model.start(3))
    state, steps = model.start(3), []
    for token in tokens.split(1, dim=1):
        steps.append(model.forecast(state).gather(1, token))
        _, state = model.score(token, state)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=EXACT)
    lengths = torch.tensor([5, 0, 12])
    cut, state = model.score(tokens, model.start(3), lengths)
    assert not cut[0, 5:].any()
    assert state.tolist() == [tokens[0, 3:5].tolist(), model.start(1)[0].tolist(), tokens[2, 10:].tolist()]
    again = model.reset(state, torch.tensor([True, False]))
    assert again.tolist() == [model.start(1)[0].tolist(), state[1].tolist()]


def test_contexts_stop_at_the_end_of_a_sentence_unless_they_cross() -> None:
    text = split()
    apart, across = (NGram.fit(vocabulary(), text, 4, crossing) for crossing in (False, True))
    torch.testing.assert_close(after(apart, [1, 2, 0]), after(apart, [3, 0]), rtol=0, atol=0)
    assert (after(across, [1, 2, 0]) - after(across, [3, 0])).abs().max() > 0.01
    streamed, separate = (evaluate(apart, batches) for batches in (Streams(text, 1, 7), Sentences(text, 64)))
    assert streamed.log_likelihood == pytest.approx(separate.log_likelihood, abs=1e-9)


def test_samples_follow_the_model() -> None:
    model, n = NGram.fit(vocabulary(), split(), 3), 4000
    words = [line.split() for line in model.sample(n, max_tokens=2, seed=3)]
    firsts = np.array([WORDS.index(line[0]) if line else 0 for line in words])
    assert chi_square(firsts, after(model, []).numpy()) > SMALLEST_P
    seconds = np.array([WORDS.index(line[1]) if len(line) > 1 else 0 for line in words if line[:1] == ["the"]])
    assert chi_square(seconds, after(model, [1]).numpy()) > SMALLEST_P
    assert model.sample(3, seed=5) == model.sample(3, seed=5)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_every_word_has_its_share_of_the_uniform_numbers(order: int) -> None:
    """The numbers that draw a word form at most one interval for each length of the context."""
    model = NGram.fit(vocabulary(), split(), order)
    sampler, state = Sampler.of(model), model.start(1)
    assert sampler is not None
    grid = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    for word in [1, 2, 4, 0]:
        drawn = sampler.draw(state.expand(GRID, -1), grid).bincount(minlength=len(WORDS))
        assert (drawn - GRID * model.forecast(state)[0].exp()).abs().max() <= order
        _, state = model.score(torch.tensor([[word]]), state)


def test_a_model_that_is_not_interpolated_is_sampled_by_its_forecasts() -> None:
    model = NGram.fit(vocabulary(), split(), 2)
    model.backoffs -= 1.0
    assert Sampler.of(model) is None
    assert model.sample_tokens(100, 5, 0).shape[0] == 100


def test_text_in_and_answers_out() -> None:
    model = NGram.fit(vocabulary(), split(), 3)
    ranked = dict(model.predict("the cat", n=len(WORDS)))
    assert ranked["sees"] == pytest.approx(float(after(model, [1, 2])[4]))
    expected = sum(math.log(after(model, [1, 2, 0][:i])[word]) for i, word in enumerate([1, 2, 0]))
    assert model.log_prob("the cat") == pytest.approx(expected)
    assert [NGram.fit(vocabulary(), split(), order).name for order in (1, 2, 3)] == ["unigram", "bigram", "3-gram"]


@pytest.mark.skipif(not os.environ.get("TRELLIS_DATA"), reason="TRELLIS_DATA is not set")
def test_penn_treebank_reaches_the_published_perplexity(tmp_path: Path) -> None:
    corpus = load_corpus(DataConfig(source="ptb"), tmp_path)
    result = evaluate(NGram.fit(corpus.vocab, corpus["train"], 5), Streams(corpus["test"], 1, 4096))
    assert result.tokens == 82_430
    assert result.perplexity == pytest.approx(141.2, abs=NEAR_PUBLISHED)


@pytest.mark.parametrize(
    ("order", "crossing", "sentence"),
    [
        (0, False, "is 0; it must be at least 1"),
        (-1, True, "is -1; it must be at least 1"),
        (9, False, "is 9, but the longest sentence has only 8 words.* at most 8"),
        (999, True, "is 999, but the text has only 277 words"),
    ],
)
def test_orders_out_of_range(order: int, crossing: bool, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        NGram.fit(vocabulary(), split(), order, crossing)
    assert NGram.fit(vocabulary(), split(), 8).order == 8


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: NGram.fit(vocabulary(), Split(*np.zeros((3, 0), np.int32))), "no tokens"),
        (lambda: NGram.fit(Vocabulary(WORDS[:4], [1] * 4), split()), "word id 6, but the vocabulary has 4 words"),
        (lambda: after(NGram.fit(vocabulary(), split(), 2), [1, 7]), "7 words of its vocabulary"),
        (lambda: after(NGram.fit(vocabulary(), split(), 2), [1, -1]), "without gaps"),
    ],
)
def test_bad_input_is_explained(call, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        call()
