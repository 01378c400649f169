"""The unigram cache: against a sum over all preceding tokens, normalised, and fitted like any mixture."""

from __future__ import annotations

import numpy as np
import pytest

from trellis.tasks.mixture import DECAYS, cache_log_probs, fit_cache, interpolate

EXACT = 1e-12
WORDS = 6


def text(tokens: int = 80, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, WORDS, tokens).astype(np.int32)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999, 1.0])
def test_the_cache_against_a_sum_over_the_past(decay: float) -> None:
    tokens = text()
    expected = [1 / WORDS]
    for place in range(1, len(tokens)):
        weights = decay ** np.arange(place - 1, -1, -1.0)
        expected.append(weights[tokens[:place] == tokens[place]].sum() / weights.sum())
    assert np.exp(cache_log_probs(tokens, decay, WORDS)) == pytest.approx(np.array(expected), abs=EXACT)


@pytest.mark.parametrize("past", [0, 1, 2, 40])
def test_probabilities_of_the_next_word_sum_to_one(past: int) -> None:
    model = np.random.default_rng(1).dirichlet(np.ones(WORDS))
    total = mixed = 0.0
    for word in range(WORDS):
        tokens = np.append(text(past), word)
        cached = cache_log_probs(tokens, 0.95, WORDS)
        total += np.exp(cached[-1])
        mixed += np.exp(interpolate(np.stack([np.log(model[tokens]), cached]), np.array([0.8, 0.2]))[-1])
    assert total == pytest.approx(1, abs=EXACT)
    assert mixed == pytest.approx(1, abs=EXACT)


def test_a_text_that_repeats_its_words_has_a_short_memory() -> None:
    """Topics of 60 tokens, each with its own two words: the cache that forgets fastest predicts best."""
    rng = np.random.default_rng(2)
    tokens = np.concatenate([rng.choice(rng.choice(100, 2, replace=False), 60) for _ in range(60)])
    uniform = np.full((1, tokens.size), -np.log(100))
    decay, weights = fit_cache(uniform, tokens, 100)
    assert decay == min(DECAYS)
    assert weights[1] > 0.5
    every = [np.vstack([uniform, cache_log_probs(tokens, one, 100)]) for one in DECAYS]
    scores = [interpolate(one, weights).sum() for one in every]
    assert scores[0] == max(scores)
    assert scores[0] > uniform.sum()
