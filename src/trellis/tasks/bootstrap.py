"""Significance of the difference between two models: the paired bootstrap over sentences."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

RESAMPLES, CONFIDENCE = 10_000, 0.95
DRAWS = 1 << 22  # sentences sampled at a time


@dataclass
class Difference:
    """The second model's score minus the first's, its confidence interval, and the p-value of no difference."""

    difference: float
    low: float
    high: float
    p_value: float


def paired_bootstrap(
    first: np.ndarray, second: np.ndarray, sentences: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Compare perplexities given log-probabilities [tokens] of the same tokens; sentences [S + 1] are offsets."""
    sums = np.stack([np.add.reduceat(x, sentences[:-1]) for x in (first, second)] + [np.diff(sentences)], 1)
    return bootstrap(sums, difference, resamples, seed)


def bootstrap(
    sums: np.ndarray, difference: Callable[[np.ndarray], np.ndarray], resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Compare two models by sums [S, k] over each sentence; `difference` maps totals [..., k] to [...].

    Texts of S sentences are sampled with replacement and scored by both models. The interval covers the central 95% of
    the differences; the p-value is twice the fraction with the opposite sign (at least 2 / (resamples + 1)). If a model
    assigns the text probability zero, everything but the difference is nan."""
    observed = float(difference(sums.sum(0)))
    if not np.isfinite(sums).all():
        return Difference(observed, np.nan, np.nan, np.nan)
    rng, rows = np.random.default_rng(seed), max(1, DRAWS // len(sums))
    steps = range(0, resamples, rows)
    differences = np.concatenate([difference(resample(sums, min(rows, resamples - done), rng)) for done in steps])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences, [tail, 1 - tail]).tolist()
    beyond = 1 + min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return Difference(observed, low, high, min(1.0, 2 * beyond / (resamples + 1)))


def binomial_p(first: np.ndarray, second: np.ndarray) -> float:
    """The p-value of the exact binomial test of whether two taggers are equally good, given which tokens each tagged
    correctly [N]. Only tokens that one of them got wrong count."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    return float(binomtest(only_first, only_first + only_second).pvalue) if only_first + only_second else 1.0


def resample(sums: np.ndarray, times: int, rng: np.random.Generator) -> np.ndarray:
    """The totals of `times` resampled texts with as many sentences: [times, k]."""
    chosen = rng.integers(len(sums), size=(times, len(sums)))
    return np.stack([column[chosen].sum(1) for column in sums.T], 1)


def difference(totals: np.ndarray) -> np.ndarray:
    """exp(-second / tokens) - exp(-first / tokens) of totals [..., 3]: first, second, tokens."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(-totals[..., 1] / totals[..., 2]) - np.exp(-totals[..., 0] / totals[..., 2])
