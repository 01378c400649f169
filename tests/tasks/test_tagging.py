"""Scores of tags: beside seqeval and conlleval's own figures, by bucket, and by chance."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from trellis.corpus.tagged import Tagged
from trellis.errors import TrellisError
from trellis.tasks.tagging import Score, compare_tags, f1_difference, score_tags

EXACT = 1e-12
GOLD = ["B-NP I-NP O B-VP", "O B-NP B-NP", "B-VP O B-NP I-NP"]
GUESS = ["B-NP I-NP B-VP I-VP", "O B-NP I-NP", "B-VP O I-NP I-NP"]


def split(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def tagged(tags: list[list[str]]) -> Tagged:
    return Tagged([[f"w{t}" for t in range(len(row))] for row in tags], tags)


def random_tags(seed: int, sentences: int = 40, labels: tuple[str, ...] = ("B-A", "I-A", "B-B", "I-B", "O")) -> list:
    rng = random.Random(seed)
    lengths = random.Random(0)
    return [[rng.choice(labels) for _ in range(lengths.randint(1, 9))] for _ in range(sentences)]


def blend(gold: list[list[str]], noise: list[list[str]], share: float) -> list[list[str]]:
    """About that share of the gold tags, and noise."""
    rng = np.random.default_rng(0)
    return [
        [g if rng.random() < share else n for g, n in zip(*rows, strict=True)] for rows in zip(gold, noise, strict=True)
    ]


def test_figures_of_conlleval() -> None:
    """By its rules: 6 phrases, 5 found, of them 3 correct; 7 of 11 tokens; NP 2 of 3 and of 4, VP 1 of 2 and of 2."""
    scores = score_tags(tagged(split(GOLD)), split(GUESS), "spans")
    assert scores.buckets["all"] == Score(3, 5, 6)
    assert scores.kinds == {"NP": Score(2, 3, 4), "VP": Score(1, 2, 2)}
    assert scores.accuracy == pytest.approx(7 / 11, abs=EXACT)
    assert (scores.buckets["all"].precision, scores.buckets["all"].recall) == (3 / 5, 3 / 6)
    assert scores.f1 == pytest.approx(6 / 11, abs=EXACT)


@pytest.mark.parametrize("seed", range(5))
def test_spans_beside_seqeval(seed: int) -> None:
    metrics = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed")
    gold, guess = random_tags(seed), blend(random_tags(seed), random_tags(seed + 100), 0.7)
    scores = score_tags(tagged(gold), guess, "spans")
    found = scores.buckets["all"]
    assert found.precision == pytest.approx(metrics.precision_score(gold, guess), abs=EXACT)
    assert found.recall == pytest.approx(metrics.recall_score(gold, guess), abs=EXACT)
    assert found.f1 == pytest.approx(metrics.f1_score(gold, guess), abs=EXACT)
    assert scores.accuracy == pytest.approx(metrics.accuracy_score(gold, guess), abs=EXACT)


def test_buckets_go_by_the_first_word_of_a_span() -> None:
    data = Tagged([["new", "known", "seldom", "known"]], [["B-A", "I-A", "B-A", "O"]])
    known = Counter(known=3, seldom=2)
    scores = score_tags(data, [["B-A", "I-A", "O", "B-A"]], "spans", known)
    assert scores.buckets == {
        "all": Score(1, 2, 2), "oov": Score(1, 1, 1), "rare": Score(0, 0, 1), "oov+rare": Score(1, 1, 2)
    }  # fmt: skip
    assert score_tags(data, [["B-A", "I-A", "O", "B-A"]], "tokens", known).buckets["oov+rare"] == Score(1, 2, 2)


def test_scores_without_any_unit_are_zero() -> None:
    for score in (Score(0, 0, 0), Score(0, 2, 0), Score(0, 0, 2)):
        assert (score.precision, score.recall, score.f1) == (0.0, 0.0, 0.0)


def test_confusions_come_most_frequent_first() -> None:
    scores = score_tags(tagged([["X", "X", "Y", "Z"]]), [["Y", "Y", "X", "Z"]])
    assert scores.confusions == [("X", "Y", 2), ("Y", "X", 1)]
    assert scores.f1 == scores.accuracy == 1 / 4
    assert scores.kinds["Z"] == Score(1, 1, 1)


def test_the_binomial_test_is_exact() -> None:
    gold = [["X"] * 12]
    better, worse = [["X"] * 10 + ["Y"] * 2], [["Y"] * 8 + ["X"] * 3 + ["Y"]]
    compared = compare_tags(tagged(gold), worse, better, resamples=100)
    assert (compared.only_first, compared.only_second) == (1, 8)
    assert compared.p_value == pytest.approx(2 * binom.cdf(1, 9, 0.5), abs=EXACT)
    assert compared.f1.difference == pytest.approx(7 / 12, abs=EXACT)


@pytest.mark.parametrize("wrong", [[["X"]], [["X"], ["Y"]], [["X", "Y"], ["X"]]])
def test_compared_tags_cover_the_same_tokens(wrong: list[list[str]]) -> None:
    gold = [["X", "Y"]]
    for pair in ((gold, wrong), (wrong, gold)):
        with pytest.raises(TrellisError, match="cover the same sentences"):
            compare_tags(tagged(gold), *pair, resamples=1)


def test_the_bootstrap_sees_a_difference_and_no_difference() -> None:
    gold, noise = random_tags(1, 300), random_tags(2, 300)
    worse, better = blend(gold, noise, 0.5), blend(gold, noise, 0.8)
    for units in ("tokens", "spans"):
        clear = compare_tags(tagged(gold), worse, better, units, 500).f1
        assert 0 < clear.low < clear.difference < clear.high
        assert clear.p_value < 0.01
        assert compare_tags(tagged(gold), worse, worse, units, 500).f1.p_value == 1.0


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(TrellisError, match="different lengths"):
        score_tags(tagged([["X", "Y"]]), [["X"]])
    with pytest.raises(TrellisError, match="did you mean"):
        score_tags(tagged([["X"]]), [["X"]], "span")


def test_words_seen_once_or_twice_are_rare() -> None:
    data = Tagged([["none", "one", "two", "three"]], [["A", "A", "A", "A"]])
    known = Counter(one=1, two=2, three=3)
    buckets = score_tags(data, [["A", "B", "A", "B"]], "tokens", known).buckets
    assert {name: (score.correct, score.gold) for name, score in buckets.items()} == {
        "all": (2, 4), "oov": (1, 1), "rare": (1, 2), "oov+rare": (2, 3)
    }  # fmt: skip


def test_the_difference_of_f1() -> None:
    totals = np.array([[3, 5, 7, 4, 4, 6], [0, 0, 0, 1, 1, 1]])  # correct, predicted, gold: of the first, the second
    np.testing.assert_allclose(f1_difference(totals), [2 * 4 / 10 - 2 * 3 / 12, 1.0], atol=EXACT)
