"""Evaluation of taggers: accuracy, exact spans as in conlleval, rare words, significance of differences, and mapping of
hidden states to tags.

A unit is a token with its tag, or a span. A predicted unit is correct if it equals a gold unit. If units are tokens,
precision, recall and F1 all equal the accuracy."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.optimize import linear_sum_assignment

from trellis.corpus.tagged import Tagged
from trellis.corpus.tagsets import Span, spans
from trellis.errors import TrellisError
from trellis.options import choose
from trellis.tasks.bootstrap import RESAMPLES, Difference, binomial_p, bootstrap

BUCKETS: dict[str, Callable[[int], bool]] = {  # by a word's count in the tagged training text
    "all": lambda count: True,
    "oov": lambda count: count == 0,
    "rare": lambda count: count in (1, 2),
    "oov+rare": lambda count: count <= 2,
}


def tokens(tags: Iterable[str]) -> list[Span]:
    """Every token as a separate unit."""
    return [Span(tag, t, t) for t, tag in enumerate(tags)]


UNITS: dict[str, Callable[[Iterable[str]], list[Span]]] = {"tokens": tokens, "spans": spans}


@dataclass(frozen=True)
class Score:
    """The number of correct, predicted and gold units."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """F1; for tokens, the accuracy."""
        return 2 * self.correct / (self.predicted + self.gold) if self.predicted + self.gold else 0.0


@dataclass(frozen=True)
class TagScores:
    """All scores of the predicted tags of a text."""

    units: str  # tokens | spans
    accuracy: float  # token accuracy, whatever the units
    buckets: dict[str, Score]
    kinds: dict[str, Score]  # by tag or span type
    confusions: list[tuple[str, str, int]]  # gold tag, predicted tag, count; most frequent first

    @property
    def f1(self) -> float:
        return self.buckets["all"].f1


def score_tags(
    data: Tagged, predicted: list[list[str]], units: str = "tokens", known: Mapping[str, int] | None = None
) -> TagScores:
    """Score predicted tags against those of `data`. `known` has the word counts of the tagged training text."""
    find = choose(UNITS, units, "The scoring unit")
    check_lengths(data, predicted)
    counts = known if known is not None else {}
    words = set(chain.from_iterable(data.words))
    buckets = BUCKETS if known is not None else {"all": BUCKETS["all"]}
    pairs = [(find(gold), find(guess)) for gold, guess in zip(data.tags, predicted, strict=True)]
    by_bucket = {
        name: total(sentence_counts(pairs, data.words, {word for word in words if belongs(counts.get(word, 0))}))
        for name, belongs in buckets.items()
    }
    confused = confusion_table(data.tags, predicted)
    right = sum(n for (gold, guess), n in confused.items() if gold == guess)
    wrong = [(*pair, n) for pair, n in confused.most_common() if pair[0] != pair[1]]
    return TagScores(units, right / data.num_tokens, by_bucket, scores_by_kind(pairs), wrong)


def check_lengths(data: Tagged, predicted: list[list[str]]) -> None:
    if [len(tags) for tags in data.tags] != [len(tags) for tags in predicted]:
        raise TrellisError("Gold and predicted tags have different lengths; they must cover the same sentences.")


def sentence_counts(
    pairs: Sequence[tuple[list[Span], list[Span]]],
    sentences: Sequence[Sequence[str]],
    words: Collection[str] | None = None,
) -> np.ndarray:
    """Numbers of correct, predicted and gold units per sentence, [S, 3]. With `words`, only units that begin with one
    of these words are counted."""
    rows = []
    for (gold, guess), sentence in zip(pairs, sentences, strict=True):
        both = ({unit for unit in units if words is None or sentence[unit.first] in words} for units in (gold, guess))
        wanted, found = both
        rows.append((len(wanted & found), len(found), len(wanted)))
    return np.array(rows)


def total(counts: np.ndarray) -> Score:
    return Score(*counts.sum(0).tolist())


def scores_by_kind(pairs: Iterable[tuple[list[Span], list[Span]]]) -> dict[str, Score]:
    """The score of each tag or span type."""
    correct, predicted, gold = Counter[str](), Counter[str](), Counter[str]()
    for wanted, found in pairs:
        gold.update(unit.kind for unit in wanted)
        predicted.update(unit.kind for unit in found)
        correct.update(unit.kind for unit in set(wanted) & set(found))
    return {kind: Score(correct[kind], predicted[kind], gold[kind]) for kind in sorted(gold | predicted)}


def confusion_table(gold: Sequence[list[str]], predicted: Sequence[list[str]]) -> Counter[tuple[str, str]]:
    """Counts of (gold tag, predicted tag)."""
    return Counter(pair for rows in zip(gold, predicted, strict=True) for pair in zip(*rows, strict=True))


def word_counts(data: Tagged) -> Counter[str]:
    return Counter(word for sentence in data.words for word in sentence)


@dataclass(frozen=True)
class Comparison:
    """Two taggers on one text: the tokens that only one of them tags correctly, and the difference in F1."""

    only_first: int
    only_second: int
    p_value: float  # exact binomial test on these tokens
    f1: Difference  # second minus first, by the paired bootstrap over sentences


def compare_tags(
    data: Tagged, first: list[list[str]], second: list[list[str]], units: str = "tokens", resamples: int = RESAMPLES
) -> Comparison:
    """Compare two lists of predicted tags of the same text."""
    find = choose(UNITS, units, "The scoring unit")
    for predicted in (first, second):
        check_lengths(data, predicted)
    gold, *both = (np.array(list(chain.from_iterable(tags))) for tags in (data.tags, first, second))
    one, other = (tags == gold for tags in both)
    alone = int((one & ~other).sum()), int((other & ~one).sum())
    counts = [
        sentence_counts([(find(g), find(p)) for g, p in zip(data.tags, predicted, strict=True)], data.words)
        for predicted in (first, second)
    ]
    return Comparison(*alone, binomial_p(one, other), bootstrap(np.hstack(counts), f1_difference, resamples))


def f1_difference(totals: np.ndarray) -> np.ndarray:
    """F1 of the last three columns minus F1 of the first three: [..., 6] -> [...]."""
    first, second = (2 * totals[..., i] / np.maximum(totals[..., i + 1] + totals[..., i + 2], 1) for i in (0, 3))
    return second - first


def many_to_one(counts: np.ndarray) -> np.ndarray:
    """The most frequent tag of each state: [Y, K] -> [K]."""
    return counts.argmax(0)


def one_to_one(counts: np.ndarray) -> np.ndarray:
    """A different tag for each state (-1: none), chosen to maximise the number of correct tokens: [Y, K] -> [K]."""
    tags, states = linear_sum_assignment(counts, maximize=True)
    found = np.full(counts.shape[1], -1)
    found[states] = tags
    return found


def num_right(counts: np.ndarray, tags: np.ndarray) -> float:
    """The number of tokens whose tag equals the tag assigned to their state: [Y, K], [K]."""
    chosen = np.flatnonzero(tags >= 0)
    return float(counts[tags[chosen], chosen].sum())


MATCHES = {"many": many_to_one, "one": one_to_one}
