"""Count word bigrams in a stream, and compute the mutual information of a partition of the words."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

from trellis.corpus.moments import Sums
from trellis.errors import TrellisError
from trellis.kernels.brown.state import class_table

TOKEN_BLOCK = 1 << 22  # tokens counted at a time


class BigramCounts(NamedTuple):
    """Unigram and bigram counts."""

    words: np.ndarray  # [V]
    bigrams: sparse.csr_array  # [V, V], row: first word, column: second


def count_bigrams(tokens: np.ndarray | Iterable[np.ndarray], vocab_size: int | None = None) -> BigramCounts:
    """Count the bigrams of an array of word ids, or of consecutive chunks of one text. A memmap is read in blocks.

    Without `vocab_size`, the largest id determines it.
    """
    totals = np.zeros(vocab_size or 0, np.int64)
    parts = Sums(_sum)
    last = np.empty(0, np.int64)
    for block in _blocks(tokens):
        _check_ids(block, vocab_size)
        before, totals = totals, np.bincount(block, minlength=len(totals))
        totals[: len(before)] += before
        text = np.concatenate([last, block])
        parts.add(_pairs(text[:-1], text[1:], len(totals)))
        last = block[-1:]
    if not parts.stack:
        raise TrellisError("The corpus is empty: it has no words to cluster.")
    return BigramCounts(totals, parts.total())


def with_pair(one: BigramCounts, other: BigramCounts, last: int, first: int) -> BigramCounts:
    """Add the counts of two consecutive texts over the same vocabulary, and the bigram (last, first) between them."""
    size = len(one.words)
    between = _pairs(np.array([last]), np.array([first]), size)
    return BigramCounts(one.words + other.words, one.bigrams + other.bigrams + between)


def average_mutual_information(bigrams: sparse.csr_array, assignment: np.ndarray) -> float:
    """Average mutual information of the classes of adjacent words, in nats: Σ p(c, d) log(p(c, d) / (p(c) p(d)))."""
    table = class_table(bigrams, assignment, int(assignment.max()) + 1)
    joint = table[table > 0] / table.sum()
    marginals = [margin[margin > 0] / table.sum() for margin in (table.sum(axis=1), table.sum(axis=0))]
    return float((joint * np.log(joint)).sum() - sum((p * np.log(p)).sum() for p in marginals))


def _blocks(tokens: np.ndarray | Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the tokens in non-empty blocks of bounded length."""
    for piece in [tokens] if isinstance(tokens, np.ndarray) else tokens:
        for begin in range(0, len(piece), TOKEN_BLOCK):
            yield np.asarray(piece[begin : begin + TOKEN_BLOCK])


def _check_ids(block: np.ndarray, vocab_size: int | None) -> None:
    if block.ndim != 1 or block.dtype.kind not in "iu":
        raise TrellisError(f"Word ids must be a 1-D integer array, not {block.ndim}-D {block.dtype}; encode it first.")
    low, high = int(block.min()), int(block.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        wrong = low if low < 0 else high
        raise TrellisError(f"Word id {wrong} is not in the vocabulary; encode the corpus with that vocabulary.")


def _pairs(first: np.ndarray, second: np.ndarray, size: int) -> sparse.csr_array:
    ones = np.ones(len(first), np.int64)
    return sparse.coo_array((ones, (first, second)), shape=(size, size)).tocsr()


def _sum(older: sparse.csr_array, newer: sparse.csr_array) -> sparse.csr_array:
    older.resize(newer.shape)
    return older + newer
