"""Sparse co-occurrence counts of words at lags 1..K, accumulated in one streaming pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from operator import add, attrgetter
from typing import Any

import numpy as np
from scipy import sparse

from trellis.corpus.dask import total_with_dask
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
    total, size = len(tokens), check_sizes(tokens, rows, lags)

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


def count_with_dask(tokens: np.ndarray, rows: np.ndarray, lags: int, circular: bool = True) -> Moments:
    """`count_moments` with chunks distributed by dask; needs the extra `dask`."""
    total, _ = len(tokens), check_sizes(tokens, rows, lags)
    bounds = ((begin, min(begin + CHUNK, total)) for begin in range(0, total, CHUNK))
    chunks = ((np.asarray(read(tokens, begin, end + lags, circular)), end - begin) for begin, end in bounds)
    return total_with_dask(partial(count_chunk, rows=rows, lags=lags, circular=circular), chunks)


def count_chunk(chunk: tuple[np.ndarray, int], rows: np.ndarray, lags: int, circular: bool) -> Moments:
    """Counts of the first `length` words of a chunk (words, length), and of their pairs at lags 1..lags."""
    words, length = chunk
    found, size = found_rows(rows, words), int(rows.max()) + 1
    pairs = [count_pairs(found[: length + lag], length, lag, size) for lag in range(1, lags + 1)]
    return Moments(rows, np.bincount(found[:length], minlength=size), pairs, circular)


def check_sizes(tokens: np.ndarray, rows: np.ndarray, lags: int) -> int:
    """The number of rows; raises if the text cannot be counted."""
    size = int(rows.max(initial=ABSENT)) + 1
    if len(tokens) <= lags:
        raise TrellisError(f"The text has {len(tokens):,} tokens, too few for a lag of {lags}; use a longer text.")
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
