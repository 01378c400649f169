"""Interpolated modified Kneser-Ney by the book: dictionaries of tuples, one probability at a time."""

from __future__ import annotations

from collections import Counter
from itertools import chain

BEGIN, EOS = -1, 0  # the beginning of a sentence, where sentences are apart; the word that ends them


class KneserNey:
    """p(word | context) for sentences of words 0 .. words - 1, each ending in EOS."""

    def __init__(self, sentences: list[list[int]], words: int, order: int, crossing: bool) -> None:
        self.words, self.order, self.crossing = words, order, crossing
        rows = [[EOS, *chain(*sentences)]] if crossing else [[BEGIN, *sentence] for sentence in sentences]
        raw = [
            Counter(tuple(row[i - k : i]) for row in rows for i in range(max(k, 2), len(row) + 1))
            for k in range(1, order + 1)
        ]
        self.counts = [*map(self.adjust, raw, raw[1:]), raw[-1]]
        self.discounts = [self.discount(Counter(counts.values())) for counts in self.counts]

    @staticmethod
    def adjust(counts: Counter, longer: Counter) -> dict[tuple[int, ...], int]:
        """How many words come before each n-gram; its count where none ever does."""
        kinds = Counter(ngram[1:] for ngram in longer)
        return {ngram: kinds[ngram] or count for ngram, count in counts.items()}

    @staticmethod
    def discount(n: Counter) -> list[float]:
        if n[1] * n[2] * n[3] * n[4]:
            y = n[1] / (n[1] + 2 * n[2])
            cut = [i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3)]
            if min(cut) > 0:
                return [0.0, *cut]
        return [0.0, 0.5, 1.0, 1.5]

    def prob(self, context: tuple[int, ...], word: int) -> float:
        lower = self.prob(context[1:], word) if context else 1 / self.words
        after = {g[-1]: count for g, count in self.counts[len(context)].items() if g[:-1] == context}
        if not after:
            return lower
        cut = self.discounts[len(context)]
        kept = after.get(word, 0) - cut[min(after.get(word, 0), 3)]
        return (kept + sum(cut[min(count, 3)] for count in after.values()) * lower) / sum(after.values())

    def context(self, history: list[int]) -> tuple[int, ...]:
        """What the model sees of the words since the beginning of the text."""
        seen = [EOS, *history]
        if not self.crossing:
            seen = [BEGIN, *seen[len(seen) - seen[::-1].index(EOS) :]]
        return tuple(seen[len(seen) - self.order + 1 :]) if len(seen) >= self.order else tuple(seen)

    def forecast(self, history: list[int]) -> list[float]:
        return [self.prob(self.context(history), word) for word in range(self.words)]
