"""Count the words and bigrams of files with dask. Each task reads one file, in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from trellis.config import DataConfig
from trellis.corpus.brown_counts import BigramCounts, count_bigrams, with_pair
from trellis.corpus.dask import total_with_dask
from trellis.corpus.encode import default_min_count
from trellis.corpus.read import read_texts, suffix_of
from trellis.corpus.recipe import Recipe, make_recipe
from trellis.corpus.tokenize import DOCUMENT, EOS, LINE, TOKENIZERS, treat
from trellis.corpus.vocab import Vocabulary


def recipe_for(paths: Sequence[Path], config: DataConfig) -> Recipe:
    """The preprocessing options for files that all have the format of the first."""
    return make_recipe(config, suffix_of(paths[0]))


def vocabulary_of_files(paths: Sequence[Path], config: DataConfig) -> Vocabulary:
    """The vocabulary that training on all of these files would choose."""
    recipe = recipe_for(paths, config)
    counts = dict(total_with_dask(partial(count_words, recipe=recipe), paths))
    min_count = default_min_count(counts, recipe) if recipe.min_count is None else recipe.min_count
    return Vocabulary.choose(
        counts, min_count, recipe.max_size, recipe.unk, recipe.tokenizer, recipe.lower, recipe.digits
    )


def count_words(path: Path, recipe: Recipe) -> Counter[str] | None:
    """How often each word occurs in a file; None if it is empty."""
    counts = Counter[str]()
    for words in tokens_of_file(path, recipe):
        counts.update(words)
    return counts or None


def tokens_of_file(path: Path, recipe: Recipe) -> Iterator[list[str]]:
    """The tokens of a file, in blocks; each sentence ends with <eos>."""
    split = TOKENIZERS[recipe.tokenizer].split
    for text in read_texts([path], recipe):
        words = split(treat(text, recipe.lower, recipe.digits))
        yield [EOS if word == LINE else word for word in words if word != DOCUMENT]


@dataclass(frozen=True)
class Span:
    """The bigrams of a part of a text, with its first and last word."""

    counts: BigramCounts
    first: int
    last: int

    def __add__(self, other: Span) -> Span:
        """The bigrams of two consecutive parts."""
        return Span(with_pair(self.counts, other.counts, self.last, other.first), self.first, other.last)


def bigrams_of_files(paths: Sequence[Path], vocab: Vocabulary, config: DataConfig) -> BigramCounts:
    """The bigram counts of files, read as one text, for Brown clustering."""
    return total_with_dask(partial(_span, vocab=vocab, recipe=recipe_for(paths, config)), paths).counts


def _span(path: Path, vocab: Vocabulary, recipe: Recipe) -> Span | None:
    ends: list[int] = []

    def blocks() -> Iterator[np.ndarray]:
        for words in tokens_of_file(path, recipe):
            if words:
                ids = np.array(vocab.encode(words))
                ends[:] = [ends[0] if ends else int(ids[0]), int(ids[-1])]
                yield ids

    text = blocks()
    first = next(text, None)
    return None if first is None else Span(count_bigrams(chain([first], text), len(vocab)), *ends)
