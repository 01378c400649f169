"""Baselines: normalised, and equal to counting by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from corpora import WORDS, split, vocabulary
from trellis.models import Bigram, Unigram, ngram

EXACT = 1e-9


def test_unigram_by_hand() -> None:
    text = split()
    model = Unigram.fit(vocabulary(), text)
    counts = Counter(text.tokens.tolist())
    for word in range(len(WORDS)):
        expected = (counts[word] + 1) / (text.tokens.size + len(WORDS))
        assert float(model.log_probs[word].exp()) == pytest.approx(expected, rel=1e-6)


def kneser_ney(text: list[int], before: int, word: int) -> float:
    pairs = Counter(pairwise([0, *text]))
    once, twice = (sum(c == n for c in pairs.values()) for n in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.5
    total = sum(c for (u, _), c in pairs.items() if u == before)
    kinds = sum(u == before for u, _ in pairs)
    lower = sum(x == word for _, x in pairs) + 1
    lower /= sum(sum(x == w for _, x in pairs) + 1 for w in range(len(WORDS)))
    if not total:
        return lower
    return max(pairs[before, word] - discount, 0) / total + discount * kinds / total * lower


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_bigram_by_hand(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "CHUNK", chunk)
    text = split(sentences=20)
    text = text._replace(tokens=text.tokens[text.tokens != 3])  # a word never seen
    model = Bigram.fit(vocabulary(), text)
    forecast = model.forecast(torch.arange(len(WORDS))).exp()
    torch.testing.assert_close(forecast.sum(-1), torch.ones(len(WORDS), dtype=torch.float64), rtol=0, atol=EXACT)
    by_hand = [[kneser_ney(text.tokens.tolist(), u, x) for x in range(len(WORDS))] for u in range(len(WORDS))]
    np.testing.assert_allclose(forecast.numpy(), by_hand, rtol=0, atol=EXACT)
    scores, last = model.score(torch.tensor([[1, 2, 3], [4, 3, 0]]), torch.tensor([0, 5]), torch.tensor([3, 2]))
    assert last.tolist() == [3, 3]
    assert scores[1, 2] == 0
    torch.testing.assert_close(scores[0], forecast.log()[[0, 1, 2], [1, 2, 3]])
    torch.testing.assert_close(scores[1, :2], forecast.log()[[5, 4], [4, 3]])
