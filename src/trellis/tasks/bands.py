"""Where a model does well: perplexity by the frequency of the word, and by its place in the sentence."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trellis.corpus import Split, Vocabulary
from trellis.corpus.tokenize import EOS, UNK
from trellis.tasks.lm import Evaluation

COUNTS = (0, 1, 10, 100, 1_000, 10_000)  # where a band of training counts begins
PLACES = (0, 1, 2, 3, 5, 10, 20, 50)  # words before, in the sentence


@dataclass
class Band:
    """Some of the tokens of a text, and how well a model predicts them."""

    name: str
    tokens: int
    perplexity: float


class Bands(NamedTuple):
    """Each token of a text belongs to one band."""

    names: list[str]
    of_token: np.ndarray  # [tokens]

    def measure(self, log_probs: np.ndarray) -> list[Band]:
        """The perplexity of a model with these log-probabilities [tokens] in each band that has tokens."""
        sizes = np.bincount(self.of_token, minlength=len(self.names)).tolist()
        totals = np.bincount(self.of_token, log_probs, len(self.names)).tolist()
        found = zip(self.names, sizes, totals, strict=True)
        return [Band(name, size, Evaluation(total, size).perplexity) for name, size, total in found if size]


def by_frequency(split: Split, vocab: Vocabulary) -> Bands:
    """Bands of the words' training counts; <eos> and <unk> are bands of their own."""
    of_word = np.searchsorted(COUNTS, vocab.counts, side="right") - 1
    names = ranges(COUNTS)
    for special in (EOS, UNK):
        if special in vocab.index:
            of_word[vocab.index[special]] = len(names)
            names.append(special)
    return Bands(names, of_word[split.tokens])


def by_position(split: Split) -> Bands:
    """Bands of how many words come before in the sentence."""
    place = np.arange(split.tokens.size) - np.repeat(split.sentences[:-1], np.diff(split.sentences))
    return Bands(ranges(PLACES), np.searchsorted(PLACES, place, side="right") - 1)


def ranges(starts: tuple[int, ...]) -> list[str]:
    """Each range up to the next start, in words: 0, 1-9, ..., 10,000+."""
    ends = [start - 1 for start in starts[1:]]
    inner = (f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in zip(starts, ends, strict=False))
    return [*inner, f"{starts[-1]:,}+"]
