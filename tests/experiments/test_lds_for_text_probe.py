"""The probe finds what vectors tell, looks up what needs none, and its test of a difference is the binomial one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom

from experiments.lds_for_text.probe import fit_probe, is_punctuation, majority_tags, normal_form
from trellis.tasks.bootstrap import binomial_p

CHANCE, ENOUGH = 0.6, 0.9  # accuracies


@pytest.fixture(scope="module")
def tokens() -> tuple[torch.Tensor, list[str], list[str]]:
    """Two tags that are the sign of a product of the first two coordinates: no linear classifier finds them."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(4000, 6, generator=generator)
    tags = ["A" if a * b > 0 else "B" for a, b in vectors[:, :2].tolist()]
    return vectors, ["w" + "abcdefgh"[i % 8] for i in range(4000)], tags


def test_the_network_finds_what_no_line_divides(tokens, monkeypatch) -> None:
    monkeypatch.setattr("experiments.lds_for_text.probe.EPOCHS", 40)
    vectors, words, tags = tokens
    probe = fit_probe(vectors[:3000], words[:3000], tags[:3000], common=0)
    assert probe.right(vectors[3000:], words[3000:], tags[3000:]).mean() > ENOUGH
    blind = probe.right(torch.zeros_like(vectors[3000:]), words[3000:], tags[3000:]).mean()
    assert blind < CHANCE


def test_without_hidden_units_the_classifier_is_linear(tokens) -> None:
    vectors, words, tags = tokens
    blind = fit_probe(vectors[:3000], words[:3000], tags[:3000], hidden=0, common=0)
    assert blind.right(vectors[3000:], words[3000:], tags[3000:]).mean() < CHANCE
    signs = ["A" if a > 0 else "B" for a in vectors[:, 0].tolist()]
    found = fit_probe(vectors[:3000], words[:3000], signs[:3000], hidden=0, common=0)
    assert found.right(vectors[3000:], words[3000:], signs[3000:]).mean() > ENOUGH


def test_the_same_seed_gives_the_same_probe_and_leaves_the_global_one_alone(tokens) -> None:
    vectors, words, tags = (part[:200] for part in tokens)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (fit_probe(vectors, words, tags, seed=1) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True))


def test_punctuation_numbers_and_common_words_have_their_majority_tag() -> None:
    words = ["the", "the", "the", ",", "1,000", "17", "3", "dog", "runs"]
    tags = ["DET", "DET", "X", "PUNCT", "NUM", "NUM", "X", "NOUN", "VERB"]
    assert majority_tags(words, tags, common=1) == {"the": "DET", ",": "PUNCT", "NUM": "NUM"}
    probe = fit_probe(torch.randn(9, 2), words, tags, common=1)
    assert probe.predict(torch.randn(3, 2), ["the", ",", "1984"]) == ["DET", "PUNCT", "NUM"]


def test_forms() -> None:
    assert [normal_form(word) for word in ("1,000.5", "mid-1990s", "dog")] == ["NUM", "mid-NUMs", "dog"]
    assert [is_punctuation(word) for word in ("--", "(", "U.S.", "5")] == [True, True, False, False]


def test_the_p_value_is_that_of_the_binomial() -> None:
    first, second = np.zeros(20, bool), np.zeros(20, bool)
    first[:8], second[6:9] = True, True  # 6 tokens only the first, 1 only the second
    assert binomial_p(first, second) == pytest.approx(2 * binom.cdf(1, 7, 0.5))
    assert binomial_p(first, first) == 1.0
