"""Breakdowns: every token in one band, and the bands together are the whole text."""

from __future__ import annotations

import math

import numpy as np
import pytest

from corpora import split, vocabulary
from trellis.corpus import Vocabulary
from trellis.tasks.bands import Band, by_frequency, by_position, ranges

EXACT = 1e-12


def test_names_of_ranges() -> None:
    assert ranges((0, 1, 10, 1000)) == ["0", "1-9", "10-999", "1,000+"]


def test_frequency_bands_by_hand() -> None:
    vocab = Vocabulary(["<eos>", "a", "<unk>", "b", "c", "d"], [5000, 12_000, 300, 10, 9, 0])
    text = split(1)._replace(tokens=np.array([1, 3, 4, 5, 5, 2, 0, 1], np.int32))
    log_probs = -np.log(np.array([2.0, 3.0, 4.0, 5.0, 20.0, 6.0, 7.0, 8.0]))
    found = {band.name: (band.tokens, band.perplexity) for band in by_frequency(text, vocab).measure(log_probs)}
    expected = {"0": (2, 10), "1-9": (1, 4), "10-99": (1, 3), "10,000+": (2, 4), "<eos>": (1, 7), "<unk>": (1, 6)}
    assert found == {name: (size, pytest.approx(value)) for name, (size, value) in expected.items()}


def test_position_bands_by_hand() -> None:
    text = split(40)
    log_probs = np.random.default_rng(0).normal(-3, 1, text.tokens.size)
    expected: dict[str, list[float]] = {}
    for a, b in zip(text.sentences[:-1], text.sentences[1:], strict=True):
        for place, value in enumerate(log_probs[a:b]):
            name = {3: "3-4", 4: "3-4", 5: "5-9", 6: "5-9"}.get(place, str(place))
            expected.setdefault(name, []).append(value)
    for band in by_position(text).measure(log_probs):
        values = expected.pop(band.name)
        assert band.tokens == len(values)
        assert band.perplexity == pytest.approx(math.exp(-np.mean(values)), rel=EXACT)
    assert not expected


def test_bands_add_up_to_the_text() -> None:
    text, log_probs = split(), np.random.default_rng(1).normal(-2, 1, split().tokens.size)
    for bands in (by_frequency(text, vocabulary()), by_position(text)):
        found = bands.measure(log_probs)
        assert sum(band.tokens for band in found) == text.tokens.size
        total = sum(-math.log(band.perplexity) * band.tokens for band in found)
        assert total == pytest.approx(log_probs.sum(), rel=EXACT)


def test_an_impossible_token_makes_its_band_infinite() -> None:
    text = split(2)
    log_probs = np.full(text.tokens.size, -1.0)
    log_probs[0] = -np.inf
    first, second, *_ = by_position(text).measure(log_probs)
    assert first == Band("0", 2, math.inf)
    assert second.perplexity == pytest.approx(math.e)
