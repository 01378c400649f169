"""A character model of unknown words, shared by all models of an open-vocabulary evaluation.

The model is estimated from words seen once in the training text, which resemble unknown words. It therefore depends
neither on the compared models nor on their vocabularies. It is an n-gram model with Witten-Bell smoothing. In a word
c_1 ... c_n with end c_{n+1}, each character has the probability

    p(c_i | h) = (n(h c_i) + t(h) p(c_i | h')) / (n(h) + t(h)),

where h is the string of up to ORDER - 1 preceding characters of the word, h' is h without its first character, n(.)
counts occurrences, and t(h) is the number of distinct characters after h. The empty h backs off to the uniform
distribution over all code points, so every word has a nonzero probability. The newline, which no word contains, marks
the beginning and the end of a word.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache

from trellis.corpus import Split, Vocabulary
from trellis.corpus.tokenize import EOS, UNK

ORDER, CODE_POINTS, EDGE = 5, 0x110000, "\n"
FEWEST = 100  # if fewer words are seen once, all words are used


class Spelling:
    """A character model of words."""

    def __init__(self, words: Iterable[str], order: int = ORDER) -> None:
        self.order, self.num_words = order, 0
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        for word in words:
            self.num_words += 1
            text = EDGE + word + EDGE
            for i in range(1, len(text)):
                for begin in range(max(i - order + 1, 0), i + 1):
                    self.counts[text[begin:i]][text[i]] += 1
        self.totals = {context: (counts.total(), len(counts)) for context, counts in self.counts.items()}
        self.log_prob = lru_cache(maxsize=1 << 16)(self._log_prob)

    @classmethod
    def of_training_text(cls, vocab: Vocabulary, train: Split | None) -> "Spelling":
        """The model estimated from the words of a training text or, if `train` is None, from the vocabulary."""
        counts = Counter(dict(zip(vocab.words, vocab.counts, strict=True)))
        if train is not None:
            counts.update(train.unknown_words())
        words = sorted(counts.keys() - {EOS, UNK})
        once = [word for word in words if counts[word] == 1]
        return cls(once if len(once) >= FEWEST else words)

    def prob(self, character: str, context: str) -> float:
        """p(character | context), where the context is EDGE followed by all preceding characters of the word."""
        found = 1 / CODE_POINTS
        for begin in range(len(context), max(len(context) - self.order + 1, 0) - 1, -1):
            total, kinds = self.totals.get(context[begin:], (0, 0))
            if not total:
                break
            found = (self.counts[context[begin:]][character] + kinds * found) / (total + kinds)
        return found

    def _log_prob(self, word: str) -> float:
        """The log-probability of all characters and of the end."""
        text = EDGE + word + EDGE
        return sum(math.log(self.prob(text[i], text[:i])) for i in range(1, len(text)))
