"""The arrays of Brown clustering: sparse word bigrams and the dense class bigram table."""

from typing import NamedTuple

import numpy as np
from scipy import sparse

TABLED = 1 << 22  # n log n is tabulated below this count


class Bigrams(NamedTuple):
    """The bigram counts n(v, w) of words, as a list of the successors and a list of the predecessors of each word.

    They do not contain the counts n(w, w), which are in `repeats`."""

    right_start: np.ndarray  # [V + 1]
    right_word: np.ndarray  # [B]
    right_count: np.ndarray  # [B]
    left_start: np.ndarray  # [V + 1]
    left_word: np.ndarray  # [B]
    left_count: np.ndarray  # [B]
    repeats: np.ndarray  # [V] n(w, w)
    first: np.ndarray  # [V] bigrams that begin with w
    second: np.ndarray  # [V] bigrams that end with w


class Classes(NamedTuple):
    """A partition of the words and its class bigram counts, modified in place."""

    assignment: np.ndarray  # [V] class of each word, -1: none yet
    follows: np.ndarray  # [C, C] N(c, d)
    precedes: np.ndarray  # [C, C] its transpose, so that both directions read rows
    first: np.ndarray  # [C] row sums of N
    second: np.ndarray  # [C] column sums of N
    size: np.ndarray  # [C] number of words


def split_bigrams(counts: sparse.csr_array) -> Bigrams:
    """Convert a matrix of bigram counts [V, V] to lists of successors and predecessors."""
    repeats = counts.diagonal().astype(np.int64)
    others = sparse.csr_array(counts - sparse.diags_array(repeats, format="csr", dtype=np.int64))
    others.eliminate_zeros()
    right, left = others.tocsr(), others.T.tocsr()
    return Bigrams(
        *(right.indptr.astype(np.int64), right.indices.astype(np.int32), right.data.astype(np.int64)),
        *(left.indptr.astype(np.int64), left.indices.astype(np.int32), left.data.astype(np.int64)),
        repeats,
        np.asarray(counts.sum(axis=1), np.int64),
        np.asarray(counts.sum(axis=0), np.int64),
    )


def class_table(counts: sparse.csr_array, assignment: np.ndarray, classes: int) -> np.ndarray:
    """The class bigram counts N(c, d) [C, C]. Words without a class are not counted."""
    bigrams = counts.tocoo()
    c, d = assignment[bigrams.row].astype(np.int64), assignment[bigrams.col].astype(np.int64)
    placed = (c >= 0) & (d >= 0)
    cells = np.bincount(c[placed] * classes + d[placed], weights=bigrams.data[placed], minlength=classes * classes)
    return cells.astype(np.int64).reshape(classes, classes)


def tabulate(counts: sparse.csr_array, assignment: np.ndarray, classes: int) -> Classes:
    """Recount the class bigram table of a partition."""
    table = class_table(counts, assignment, classes)
    size = np.bincount(assignment[assignment >= 0], minlength=classes)
    transposed = np.ascontiguousarray(table.T)
    return Classes(assignment.astype(np.int32), table, transposed, table.sum(axis=1), table.sum(axis=0), size)


def xlogx_table(total: int) -> np.ndarray:
    """n log n for n = 0 … total, up to the tabulated limit."""
    n = np.arange(min(total + 1, TABLED), dtype=np.float64)
    return n * np.log(np.maximum(n, 1.0))
