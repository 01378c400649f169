"""How often words stand k positions apart: counted in one streaming pass, sparse, in chunks that are added up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from trellis.errors import TrellisError

CHUNK = 1 << 22  # pairs counted at a time
ABSENT = -1


@dataclass(frozen=True)
class Moments:
    """Counts of a text of T tokens, from which everything is learned; they add, so texts can be counted apart.

    Word v of the vocabulary has the row `rows[v]`: rare words share the last row, words that never occur have none.
    `lags[k - 1]` [n, n] counts how often row i stands k positions after row j."""

    rows: np.ndarray  # [V] int64
    counts: np.ndarray  # [n] int64
    lags: list[sparse.csr_array]
    circular: bool  # the text was closed to a circle, so that all lags have the margins `counts`

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def pairs(self) -> int:
        """Distinct pairs over all lags: what an iteration of learning costs."""
        return sum(lag.nnz for lag in self.lags)

    def __add__(self, other: Moments) -> Moments:
        if not np.array_equal(self.rows, other.rows) or len(self.lags) != len(other.lags):
            raise TrellisError("These counts have other words or other lags; count with the same rows and lags.")
        lags = [a + b for a, b in zip(self.lags, other.lags, strict=True)]
        return Moments(self.rows, self.counts + other.counts, lags, self.circular and other.circular)


def choose_rows(counts: np.ndarray, most: int = 0) -> np.ndarray:
    """The row of each word [V], given how often words occur: the `most` - 1 commonest have their own; 0: all have."""
    order = np.argsort(-counts, kind="stable")
    rows = np.empty(len(counts), np.int64)
    rows[order] = np.arange(len(counts))
    if most:
        rows = np.minimum(rows, most - 1)
    return np.where(counts > 0, rows, ABSENT)


def count_moments(tokens: np.ndarray, rows: np.ndarray, lags: int, circular: bool = True, workers: int = 2) -> Moments:
    """Count the pairs 1..lags apart in a stream of word ids (a memmap is read chunk by chunk), on `workers` threads."""
    total, size = len(tokens), int(rows.max(initial=ABSENT)) + 1
    if total <= lags:
        raise TrellisError(f"The text has {total:,} tokens, too few for words {lags} apart; give a longer text.")
    if size * size > np.iinfo(np.int64).max:
        raise TrellisError(f"{size:,} words are too many to number their pairs; leave rare words out.")

    def read(begin: int, end: int) -> np.ndarray:
        """The rows of the tokens from begin to end; beyond the end of the text come those of its beginning, or none."""
        piece = tokens[begin : min(end, total)]
        if circular and end > total:
            piece = np.concatenate([piece, tokens[max(begin - total, 0) : end - total]])
        return found_rows(rows, piece)

    def count(job: tuple[int, int]) -> tuple[int, sparse.csr_array]:
        begin, lag = job
        end = min(begin + CHUNK, total)
        later, earlier = read(begin + lag, end + lag), read(begin, end)
        return lag, to_sparse(later * size + earlier[: len(later)], size)

    stacks: list[list[sparse.csr_array]] = [[] for _ in range(lags)]
    with ThreadPoolExecutor(workers) as pool:
        jobs = [(begin, lag) for begin in range(0, total, CHUNK) for lag in range(1, lags + 1)]
        for batch in batched(jobs, 2 * workers):  # a bounded number of counted chunks waits to be added
            for lag, part in pool.map(count, batch):
                push(stacks[lag - 1], part)
    counts = np.zeros(size, np.int64)
    for begin in range(0, total, CHUNK):
        counts += np.bincount(read(begin, min(begin + CHUNK, total)), minlength=size)
    return Moments(rows, counts, [add_up(stack) for stack in stacks], circular)


def batched(jobs: list[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    return (jobs[begin : begin + size] for begin in range(0, len(jobs), size))


def found_rows(rows: np.ndarray, words: np.ndarray) -> np.ndarray:
    found = rows[words]
    if found.size and found.min() == ABSENT:
        word = int(words[np.argmin(found)])
        raise TrellisError(f"Word {word} of the text has a count of zero, and so no row; count its words anew.")
    return found


def to_sparse(keys: np.ndarray, size: int) -> sparse.csr_array:
    """Count equal keys row * size + column, [size, size]."""
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(first, append=len(keys)).astype(np.float64)
    row, column = np.divmod(keys[first], size)
    bounds = np.searchsorted(row, np.arange(size + 1))
    return sparse.csr_array((counts, column.astype(np.int32), bounds.astype(np.int32)), shape=(size, size))


def push(stack: list[sparse.csr_array], part: sparse.csr_array) -> None:
    """Add to a stack whose parts shrink by half or more, so that adding up costs O(n log) in all."""
    stack.append(part)
    while len(stack) > 1 and stack[-2].nnz < 2 * stack[-1].nnz:
        stack.append(stack.pop() + stack.pop())


def add_up(stack: list[sparse.csr_array]) -> sparse.csr_array:
    while len(stack) > 1:
        stack.append(stack.pop() + stack.pop())
    return stack[0]
