"""Perplexity broken down by word frequency and by position in the sentence."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trellis.corpus import Split, Vocabulary
from trellis.corpus.tokenize import EOS, UNK
from trellis.tasks.lm import Evaluation

COUNTS = (0, 1, 10, 100, 1_000, 10_000)  # lower bounds of the training-count bands
PLACES = (0, 1, 2, 3, 5, 10, 20, 50)  # preceding words in the sentence


@dataclass
class Band:
    """A subset of the tokens of a text, and a model's perplexity on it."""

    name: str
    tokens: int
    perplexity: float


class Bands(NamedTuple):
    """A partition of the tokens of a text into bands."""

    names: list[str]
    of_token: np.ndarray  # [tokens]

    def measure(self, log_probs: np.ndarray) -> list[Band]:
        """The perplexity in each non-empty band, given log-probabilities [tokens]."""
        sizes = np.bincount(self.of_token, minlength=len(self.names)).tolist()
        totals = np.bincount(self.of_token, log_probs, len(self.names)).tolist()
        found = zip(self.names, sizes, totals, strict=True)
        return [Band(name, size, Evaluation(total, size).perplexity) for name, size, total in found if size]


def by_frequency(split: Split, vocab: Vocabulary) -> Bands:
    """Bands by the words' training counts; <eos> and <unk> have their own bands."""
    of_word = np.searchsorted(COUNTS, vocab.counts, side="right") - 1
    names = ranges(COUNTS)
    for special in (EOS, UNK):
        if special in vocab.index:
            of_word[vocab.index[special]] = len(names)
            names.append(special)
    return Bands(names, of_word[split.tokens])


def by_position(split: Split) -> Bands:
    """Bands by the number of preceding words in the sentence."""
    place = np.arange(split.tokens.size) - np.repeat(split.sentences[:-1], np.diff(split.sentences))
    return Bands(ranges(PLACES), np.searchsorted(PLACES, place, side="right") - 1)


def ranges(starts: tuple[int, ...]) -> list[str]:
    """The names of ranges that begin at these numbers: 0, 1-9, ..., 10,000+."""
    ends = [start - 1 for start in starts[1:]]
    inner = (f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in zip(starts, ends, strict=False))
    return [*inner, f"{starts[-1]:,}+"]
