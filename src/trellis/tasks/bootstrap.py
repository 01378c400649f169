"""Significance of the difference between two models: the paired bootstrap over sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES, CONFIDENCE = 10_000, 0.95
FEWEST, BLOCKS = 30, 100  # a text with fewer sentences is cut into blocks of equal length
DRAWS = 1 << 22  # sentences sampled at a time


@dataclass
class Difference:
    """The score of the second model minus that of the first, the confidence interval of this difference, and the
    p-value of the hypothesis that there is no difference."""

    difference: float
    low: float
    high: float
    p_value: float
    significant: bool = False

    def verdict(self, first: str, second: str, measure: str) -> str:
        """A sentence that states whether the models differ significantly; a lower score is better."""
        if np.isnan(self.p_value):
            return (
                f"Difference of {first} and {second} in {measure} not tested: too few sentences, or probability zero."
            )
        p = f"in {measure} (p = {self.p_value:.2g})"
        if not self.significant:
            return f"{second} does not differ significantly from {first} {p}."
        return f"{second} is significantly {'better' if self.difference < 0 else 'worse'} than {first} {p}."


def paired_bootstrap(
    first: np.ndarray, second: np.ndarray, sentences: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Compare perplexities, given both models' log-probabilities [tokens] of the same tokens. `sentences` [S + 1] are
    the offsets of the sentences."""
    units = resampled_units(sentences)
    sums = np.stack([np.add.reduceat(x, units[:-1]) for x in (first, second)] + [np.diff(units)], 1)
    return bootstrap(sums, difference, resamples, seed)


def paired_bits(log_probs: Sequence[np.ndarray], ends: Sequence[np.ndarray], characters: np.ndarray) -> Difference:
    """Compare bits per character, given both models' log-probabilities of the tokens of one text.

    The models may divide the text into different tokens. `ends` are the offsets [S + 1] of the sentences in the tokens
    of each model, and `characters` are their offsets in the text. With fewer than FEWEST sentences, there is no
    interval and no p-value."""
    pairs = zip(log_probs, ends, strict=True)
    sums = [np.add.reduceat(x, offsets[:-1]) / np.log(2) for x, offsets in pairs]
    totals = np.stack([*sums, np.diff(characters)], 1)
    if len(totals) < FEWEST:
        return Difference(float(bits_difference(totals.sum(0))), np.nan, np.nan, np.nan)
    return bootstrap(totals, bits_difference)


def bits_difference(totals: np.ndarray) -> np.ndarray:
    """The second model's bits per character minus the first's. The totals [..., 3] are log2 p under the first and the
    second model, and the number of characters."""
    return (totals[..., 0] - totals[..., 1]) / totals[..., 2]


def resampled_units(sentences: np.ndarray) -> np.ndarray:
    """Offsets of the parts of a text that are resampled: its sentences, or blocks if there are few."""
    blocks = np.unique(np.linspace(0, sentences[-1], BLOCKS + 1).astype(np.int64))
    return blocks if len(sentences) <= FEWEST < len(blocks) else np.asarray(sentences)


def bootstrap(
    sums: np.ndarray, difference: Callable[[np.ndarray], np.ndarray], resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Compare two models by sums [S, k] over each sentence; `difference` maps totals [..., k] to [...].

    S sentences are sampled with replacement, many times, and each sample is scored by both models. The interval covers
    the central 95% of the differences. The p-value is twice the fraction of differences with the opposite sign (at
    least 2 / (resamples + 1)). If a model assigns the text probability zero, everything but the difference is nan."""
    observed = float(difference(sums.sum(0)))
    if not np.isfinite(sums).all():
        return Difference(observed, np.nan, np.nan, np.nan)
    rng, rows = np.random.default_rng(seed), max(1, DRAWS // len(sums))
    steps = range(0, resamples, rows)
    differences = np.concatenate([difference(resample(sums, min(rows, resamples - done), rng)) for done in steps])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences, [tail, 1 - tail]).tolist()
    beyond = 1 + min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = min(1.0, 2 * beyond / (resamples + 1))
    return Difference(observed, low, high, p_value, p_value < 1 - CONFIDENCE)


def binomial_p(first: np.ndarray, second: np.ndarray) -> float:
    """The p-value of the exact binomial test of whether two taggers are equally good. `first` and `second` [N] mark the
    tokens that each tagger tagged correctly. Only tokens that exactly one tagger got right count."""
    from scipy.stats import binomtest  # 35 MB

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    return float(binomtest(only_first, only_first + only_second).pvalue) if only_first + only_second else 1.0


def resample(sums: np.ndarray, times: int, rng: np.random.Generator) -> np.ndarray:
    """The totals of `times` resampled texts, each with as many sentences as the original: [times, k]."""
    chosen = rng.integers(len(sums), size=(times, len(sums)))
    return np.stack([column[chosen].sum(1) for column in sums.T], 1)


def difference(totals: np.ndarray) -> np.ndarray:
    """exp(-second / tokens) - exp(-first / tokens), where the totals [..., 3] are first, second and tokens."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(-totals[..., 1] / totals[..., 2]) - np.exp(-totals[..., 0] / totals[..., 2])
