"""Sparse co-occurrence counts of words at lags 1..K, accumulated in one streaming pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, attrgetter
from typing import Any

import numpy as np
from scipy import sparse

from trellis.errors import TrellisError

CHUNK = 1 << 22  # pairs counted at a time
ABSENT = -1


@dataclass(frozen=True)
class Moments:
    """Co-occurrence counts of a text of T tokens, from which an LDS is learned. Counts of several texts can be added.

    Word v belongs to row `rows[v]`. Rare words may share the last row; words that never occur have no row. The entry
    (i, j) of `lags[k - 1]` [n, n] counts how often a word of row i occurs k positions after a word of row j."""

    rows: np.ndarray  # [V] int64
    counts: np.ndarray  # [n] int64
    lags: list[sparse.csr_array]
    circular: bool  # the text wraps around, so that the marginals of every lag equal `counts`

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def pairs(self) -> int:
        """The number of distinct pairs over all lags, to which the cost of a learning iteration is proportional."""
        return sum(lag.nnz for lag in self.lags)

    def __add__(self, other: Moments) -> Moments:
        if not np.array_equal(self.rows, other.rows) or len(self.lags) != len(other.lags):
            raise TrellisError("These counts have different rows or lags; count both with the same rows and lags.")
        lags = [a + b for a, b in zip(self.lags, other.lags, strict=True)]
        return Moments(self.rows, self.counts + other.counts, lags, self.circular and other.circular)


def choose_rows(counts: np.ndarray, most: int = 0) -> np.ndarray:
    """The row of each word [V], given word counts. Each of the `most` - 1 most frequent words has its own row; rarer
    words share the last row. If `most` is 0, every word that occurs has its own row."""
    order = np.argsort(-counts, kind="stable")
    rows = np.empty(len(counts), np.int64)
    rows[order] = np.arange(len(counts))
    if most:
        rows = np.minimum(rows, most - 1)
    return np.where(counts > 0, rows, ABSENT)


def count_moments(tokens: np.ndarray, rows: np.ndarray, lags: int, circular: bool = True, workers: int = 2) -> Moments:
    """Count pairs at lags 1..lags in a stream of word ids (a memmap is read in chunks), using `workers` threads."""
    total, size = len(tokens), check_sizes(len(tokens), rows, lags)

    def count(job: tuple[int, int]) -> tuple[int, sparse.csr_array]:
        begin, lag = job
        end = min(begin + CHUNK, total)
        return lag, count_pairs(found_rows(rows, read(tokens, begin, end + lag, circular)), end - begin, lag, size)

    sums = [Sums() for _ in range(lags)]
    with ThreadPoolExecutor(workers) as pool:
        jobs = [(begin, lag) for begin in range(0, total, CHUNK) for lag in range(1, lags + 1)]
        for batch in batched(jobs, 2 * workers):  # bounds the number of counted chunks in memory
            for lag, part in pool.map(count, batch):
                sums[lag - 1].add(part)
    counts = np.zeros(size, np.int64)
    for begin in range(0, total, CHUNK):
        counts += np.bincount(found_rows(rows, tokens[begin : begin + CHUNK]), minlength=size)
    return Moments(rows, counts, [lag.total() for lag in sums], circular)


@dataclass(frozen=True)
class Passage:
    """The moments of a part of a text, without pairs that reach beyond it, and the rows of its first and last words:
    as many as there are lags, or all of a shorter part."""

    moments: Moments
    first: np.ndarray
    last: np.ndarray

    def __add__(self, other: Passage) -> Passage:
        """The moments of two consecutive parts."""
        moments = self.moments + other.moments
        longest = len(moments.lags)
        first = np.concatenate([self.first, other.first])[:longest]
        last = np.concatenate([self.last, other.last])[-longest:]
        return Passage(with_pairs(moments, self.last, other.first), first, last)

    def wrapped(self) -> Moments:
        """The moments of a whole text, which wraps around."""
        check_sizes(self.moments.tokens, self.moments.rows, len(self.moments.lags))
        return replace(with_pairs(self.moments, self.last, self.first), circular=True)


def with_pairs(moments: Moments, before: np.ndarray, after: np.ndarray) -> Moments:
    """Add the pairs between two consecutive texts, given the last rows of one and the first rows of the other."""
    size = len(moments.counts)
    lags = [total + pairs_between(before, after, k, size) for k, total in enumerate(moments.lags, 1)]
    return replace(moments, lags=lags)


def pairs_between(before: np.ndarray, after: np.ndarray, lag: int, size: int) -> sparse.csr_array:
    """Count the pairs of rows at distance `lag` that begin in one text and end in the next."""
    text = np.concatenate([before[-lag:], after[:lag]])
    return count_pairs(text, min(len(before), lag), lag, size)


def count_passage(blocks: Iterable[np.ndarray], rows: np.ndarray, lags: int) -> Passage | None:
    """Count pairs at lags 1..lags in blocks of word ids that follow each other; None if there are no blocks."""
    size = int(rows.max(initial=ABSENT)) + 1
    sums, counts = [Sums() for _ in range(lags)], np.zeros(size, np.int64)
    first = last = np.empty(0, np.int64)
    for block in blocks:
        found = found_rows(rows, block)
        counts += np.bincount(found, minlength=size)
        text, known = np.concatenate([last, found]), len(last)
        for lag, total in enumerate(sums, 1):
            total.add(count_pairs(text[max(0, known - lag) :], len(found), lag, size))
        first, last = np.concatenate([first, found[: lags - len(first)]]), text[-lags:]
    if not counts.any():
        return None
    return Passage(Moments(rows, counts, [total.total() for total in sums], circular=False), first, last)


def check_sizes(tokens: int, rows: np.ndarray, lags: int) -> int:
    """The number of rows; raises if the text cannot be counted."""
    size = int(rows.max(initial=ABSENT)) + 1
    if tokens <= lags:
        raise TrellisError(f"The text has {tokens:,} tokens, too few for a lag of {lags}; use a longer text.")
    if size * size > np.iinfo(np.int64).max:
        raise TrellisError(f"{size:,} words are too many: their pair ids overflow; leave out rare words.")
    return size


def read(tokens: np.ndarray, begin: int, end: int, circular: bool) -> np.ndarray:
    """The tokens at positions `begin` to `end` - 1. At the end of the text, they continue at its beginning if
    `circular`; otherwise they stop there."""
    piece, beyond = tokens[begin:end], end - len(tokens)
    return np.concatenate([piece, tokens[:beyond]]) if circular and beyond > 0 else piece


def count_pairs(found: np.ndarray, length: int, lag: int, size: int) -> sparse.csr_array:
    """Count the pairs of rows at positions t and t + `lag` of `found`, for t < `length`. Pairs that reach beyond the
    end of `found` are left out."""
    later = found[lag:]
    return to_sparse(later * size + found[: min(length, len(later))], size)


def batched(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def found_rows(rows: np.ndarray, words: np.ndarray) -> np.ndarray:
    found = rows[words]
    if found.size and found.min() == ABSENT:
        word = int(words[np.argmin(found)])
        raise TrellisError(f"Word {word} of the text has count 0 and therefore no row; recount the words of this text.")
    return found


def to_sparse(keys: np.ndarray, size: int) -> sparse.csr_array:
    """A matrix [size, size] whose entry (row, column) is the number of keys equal to row * size + column."""
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(first, append=len(keys)).astype(np.float64)
    row, column = np.divmod(keys[first], size)
    bounds = np.searchsorted(row, np.arange(size + 1))
    return sparse.csr_array((counts, column.astype(np.int32), bounds.astype(np.int32)), shape=(size, size))


class Sums:
    """A running sum of sparse counts: adding n entries costs O(n log n) in total.

    It keeps a stack of partial sums, each at least twice the size of the next."""

    def __init__(self, plus: Callable[[Any, Any], Any] = add, size: Callable[[Any], int] = attrgetter("nnz")) -> None:
        self.stack: list[Any] = []
        self.plus, self.size = plus, size

    def add(self, part: Any) -> None:
        self.stack.append(part)
        while len(self.stack) > 1 and self.size(self.stack[-2]) < 2 * self.size(self.stack[-1]):
            self.stack[-2:] = [self.plus(*self.stack[-2:])]

    def total(self) -> Any:
        return reduce(lambda newer, older: self.plus(older, newer), reversed(self.stack))
