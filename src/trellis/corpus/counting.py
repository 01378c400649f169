"""Count the words, bigrams and pairs of words of files with dask. Each task reads one file, in blocks."""

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
from trellis.corpus.moments import Moments, Passage, choose_rows, count_passage
from trellis.corpus.read import read_texts, suffix_of
from trellis.corpus.recipe import Recipe, make_recipe
from trellis.corpus.tokenize import DOCUMENT, EOS, LINE, TOKENIZERS, treat
from trellis.corpus.vocab import Vocabulary
from trellis.devices import check_integer
from trellis.errors import TrellisError

MOST_LAGS = 1000


def recipe_for(paths: Sequence[str | Path], config: DataConfig) -> Recipe:
    """The preprocessing options for files that all have the format of the first."""
    if isinstance(paths, str) or not isinstance(paths, Sequence) or not paths:
        raise TrellisError(f"There are no files to count in {paths!r}; pass a list of at least one path.")
    return make_recipe(config, suffix_of(Path(paths[0])))


def vocabulary_of_files(paths: Sequence[str | Path], config: DataConfig) -> Vocabulary:
    """The vocabulary that training on all of these files would choose."""
    recipe = recipe_for(paths, config)
    counts = dict(total_with_dask(partial(count_words, recipe=recipe), paths))
    min_count = default_min_count(counts, recipe) if recipe.min_count is None else recipe.min_count
    return Vocabulary.choose(
        counts, min_count, recipe.max_size, recipe.unk, recipe.tokenizer, recipe.lower, recipe.digits
    )


def count_words(path: str | Path, recipe: Recipe) -> Counter[str] | None:
    """How often each word occurs in a file; None if it is empty."""
    counts = Counter[str]()
    for words in tokens_of_file(path, recipe):
        counts.update(words)
    return counts or None


def tokens_of_file(path: str | Path, recipe: Recipe) -> Iterator[list[str]]:
    """The tokens of a file, in blocks; each sentence ends with <eos>."""
    split = TOKENIZERS[recipe.tokenizer].split
    for text in read_texts([Path(path)], recipe):
        words = split(treat(text, recipe.lower, recipe.digits))
        yield [EOS if word == LINE else word for word in words if word != DOCUMENT]


def ids_of_file(path: str | Path, vocab: Vocabulary, recipe: Recipe) -> Iterator[np.ndarray]:
    """The word ids of a file, in blocks that are not empty."""
    return (vocab.encode(words) for words in tokens_of_file(path, recipe) if words)


@dataclass(frozen=True)
class Span:
    """The bigrams of a part of a text, with its first and last word."""

    counts: BigramCounts
    first: int
    last: int

    def __add__(self, other: Span) -> Span:
        """The bigrams of two consecutive parts."""
        return Span(with_pair(self.counts, other.counts, self.last, other.first), self.first, other.last)


def bigrams_of_files(paths: Sequence[str | Path], vocab: Vocabulary, config: DataConfig) -> BigramCounts:
    """The bigram counts of files, read as one text, for Brown clustering."""
    return total_with_dask(partial(_span, vocab=vocab, recipe=recipe_for(paths, config)), paths).counts


def _span(path: str | Path, vocab: Vocabulary, recipe: Recipe) -> Span | None:
    ends: list[int] = []

    def blocks() -> Iterator[np.ndarray]:
        for ids in ids_of_file(path, vocab, recipe):
            ends[:] = [ends[0] if ends else int(ids[0]), int(ids[-1])]
            yield ids

    text = blocks()
    first = next(text, None)
    return None if first is None else Span(count_bigrams(chain([first], text), len(vocab)), *ends)


def moments_of_files(
    paths: Sequence[str | Path], vocab: Vocabulary, config: DataConfig, lags: int, words: int = 0
) -> Moments:
    """The pairs of words at lags 1..lags of files, read as one text that wraps around, from which an LDS is learned.
    Each file is read twice.

    The `words` most frequent words of the files have rows of their own (0: all words), as with `model.max_words`. With
    the defaults of `LDSConfig`, learning needs 7 lags: `fit_lds(vocab, moments_of_files(paths, vocab, config, 7))`."""
    check_integer(lags, "number of lags", 1, MOST_LAGS)
    check_integer(words, "number of words", 0)
    recipe = recipe_for(paths, config)
    rows = choose_rows(total_with_dask(partial(count_ids, vocab=vocab, recipe=recipe), paths), words)
    work = partial(_passage, vocab=vocab, recipe=recipe, rows=rows, lags=lags)
    return total_with_dask(work, paths).wrapped()


def count_ids(path: str | Path, vocab: Vocabulary, recipe: Recipe) -> np.ndarray | None:
    """How often each word id occurs in a file; None if it is empty."""
    counts = np.zeros(len(vocab), np.int64)
    for ids in ids_of_file(path, vocab, recipe):
        counts += np.bincount(ids, minlength=len(vocab))
    return counts if counts.any() else None


def _passage(path: str | Path, vocab: Vocabulary, recipe: Recipe, rows: np.ndarray, lags: int) -> Passage | None:
    return count_passage(ids_of_file(path, vocab, recipe), rows, lags)
