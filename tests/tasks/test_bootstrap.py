"""The paired bootstrap against what theory says of it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from trellis.tasks import bootstrap
from trellis.tasks.bootstrap import paired_bootstrap

SENTENCES, LENGTH = 400, 5
OFFSETS = LENGTH * np.arange(SENTENCES + 1)
NOISE = 0.05  # relative error of a quantile of 10,000 draws
PERPLEXITY = 100.0


def two_models(gain: float, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A model that gives every token 1/100, and one that is better by a random number of nats in each sentence."""
    gains = gain + spread * stats.zscore(np.random.default_rng(seed).normal(size=SENTENCES))
    first = np.full(SENTENCES * LENGTH, -math.log(PERPLEXITY))
    return first, first + np.repeat(gains, LENGTH)


def test_interval_and_p_value_of_a_normal_mean() -> None:
    """With sentences of one length the mean gain is normal, and the difference a function of it."""
    gain, spread = 0.01, 0.1
    first, second = two_models(gain, spread)
    error = spread / math.sqrt(SENTENCES)
    low, high = (PERPLEXITY * (math.exp(-gain + sign * 1.96 * error) - 1) for sign in (-1, 1))
    result = paired_bootstrap(first, second, OFFSETS)
    assert result.difference == pytest.approx(PERPLEXITY * (math.exp(-gain) - 1))
    assert result.low == pytest.approx(low, abs=NOISE * (high - low))
    assert result.high == pytest.approx(high, abs=NOISE * (high - low))
    assert result.p_value == pytest.approx(2 * stats.norm.cdf(-gain / error), rel=0.25)


def test_sides_can_be_exchanged() -> None:
    first, second = two_models(0.02, 0.1)
    one, other = paired_bootstrap(first, second, OFFSETS), paired_bootstrap(second, first, OFFSETS)
    assert (one.difference, one.low, one.high) == pytest.approx((-other.difference, -other.high, -other.low))
    assert one.p_value == other.p_value


def test_a_model_does_not_differ_from_itself() -> None:
    first, _ = two_models(0, 0.1)
    result = paired_bootstrap(first, first, OFFSETS)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)


def test_a_certain_difference_has_the_smallest_p_value() -> None:
    first, second = two_models(0.5, 0.1)
    assert paired_bootstrap(first, second, OFFSETS, resamples=99).p_value == pytest.approx(2 / 100)


def test_p_values_are_uniform_where_there_is_no_difference() -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(60):
        first = np.full(SENTENCES, -3.0)
        result = paired_bootstrap(first, first + rng.normal(0, 0.1, SENTENCES), np.arange(SENTENCES + 1), 400)
        found.append(result.p_value)
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_sentences_of_different_lengths_weigh_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = np.array([0, 1, 4, 6])
    first, second = np.log([0.1, 0.2, 0.2, 0.2, 0.5, 0.5]), np.log([0.2] * 6)
    whole = paired_bootstrap(first, second, offsets, 5000)
    assert whole.difference == pytest.approx(5 - math.exp(-first.mean()))
    assert (whole.low, whole.high) == pytest.approx((5 - 10, 5 - 2))  # one sentence three times: 1 text in 27
    monkeypatch.setattr(bootstrap, "DRAWS", 30)  # the draws of one text at a time are the same draws
    assert paired_bootstrap(first, second, offsets, 5000) == whole


def test_impossible_texts_have_no_interval() -> None:
    first, second = two_models(0.1, 0.1)
    second[7] = -np.inf
    result = paired_bootstrap(first, second, OFFSETS)
    assert result.difference == math.inf
    assert all(math.isnan(value) for value in (result.low, result.high, result.p_value))


def test_a_text_of_few_sentences_is_cut_into_blocks() -> None:
    """A single long line has no sentences to resample: a clear difference and none are told apart all the same."""
    rng, line = np.random.default_rng(0), np.array([0, 5000])
    first = rng.normal(-5, 1, 5000)
    clear = paired_bootstrap(first, first + rng.normal(0.1, 0.3, 5000), line, 500)
    none = paired_bootstrap(first, first + rng.normal(0.0, 3.0, 5000), line, 500)
    assert clear.significant
    assert clear.low < clear.difference < clear.high < 0
    assert none.p_value > 0.05
    assert not none.significant
    assert bootstrap.resampled_units(np.arange(31)).size == 31
    assert bootstrap.resampled_units(np.array([0, 7])).tolist() == [0, 7]  # too short to cut


def test_bits_of_different_tokens_are_compared_by_sentence() -> None:
    """One model with words, one with characters: against the same bootstrap of sums by hand."""
    rng = np.random.default_rng(1)
    words, letters = rng.integers(1, 5, 60), rng.integers(6, 20, 60)
    ends = [np.append(0, np.cumsum(sizes)) for sizes in (words, letters)]
    log_probs = [rng.normal(-6, 1, ends[0][-1]), rng.normal(-2, 1, ends[1][-1])]
    found = bootstrap.paired_bits(log_probs, ends, ends[1])
    assert found.difference == pytest.approx((log_probs[0].sum() - log_probs[1].sum()) / np.log(2) / ends[1][-1])
    sums = [[x[a:b].sum() / np.log(2) for a, b in pairwise(e)] for x, e in zip(log_probs, ends, strict=True)]
    chosen = np.random.default_rng(0).integers(60, size=(10_000, 60))
    totals = [np.array(column)[chosen].sum(1) for column in (*sums, letters)]
    expected = np.quantile((totals[0] - totals[1]) / totals[2], [0.025, 0.975])
    np.testing.assert_allclose([found.low, found.high], expected, rtol=1e-9)
    few = bootstrap.paired_bits(log_probs, [e[:5] for e in ends], ends[1][:5])
    assert np.isnan(few.p_value)
    assert "Difference of A and B in bits not tested" in few.verdict("A", "B", "bits")


def test_verdicts() -> None:
    better, worse = bootstrap.Difference(-1, -2, -0.5, 0.01, True), bootstrap.Difference(1, -0.5, 2, 0.3, False)
    assert better.verdict("A", "B", "perplexity") == "B is significantly better than A in perplexity (p = 0.01)."
    assert worse.verdict("A", "B", "perplexity") == "B does not differ significantly from A in perplexity (p = 0.3)."
