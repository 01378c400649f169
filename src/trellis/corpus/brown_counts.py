"""Word bigram counts taken by streaming, and the mutual information that a partition of the words keeps of them."""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from trellis.errors import TrellisError
from trellis.kernels.brown.state import class_table

TOKEN_BLOCK = 1 << 22  # tokens counted at a time
TEXT_BLOCK = 1 << 20  # characters read at a time
EOS = "<eos>"


class BigramCounts(NamedTuple):
    """How often each word occurs, and each word after each other."""

    words: np.ndarray  # [V]
    bigrams: sparse.csr_array  # [V, V], row: first word, column: second


def count_bigrams(
    tokens: np.ndarray | Iterable[np.ndarray], vocab_size: int | None = None, name: str = "The corpus"
) -> BigramCounts:
    """Count one array of word ids (a memmap is read block by block) or the pieces of one text, in order.

    Without a vocabulary size the largest id decides.
    """
    totals = np.zeros(vocab_size or 0, np.int64)
    parts: list[sparse.csr_array] = []
    last = np.empty(0, np.int64)
    for block in _blocks(tokens):
        _check_ids(block, vocab_size)
        totals = _add(totals, np.bincount(block, minlength=len(totals)))
        text = np.concatenate([last, block])
        _push(parts, _pairs(text[:-1], text[1:], len(totals)))
        last = block[-1:]
    if not parts:
        raise TrellisError(f"{name} is empty: it has no words to cluster; give one with some text.")
    while len(parts) > 1:
        parts.append(_sum(parts.pop(), parts.pop()))
    return BigramCounts(totals, parts[0])


def count_text(path: str | Path) -> tuple[list[str], BigramCounts]:
    """Words of a text file (or its .gz), most frequent first, and their counts; every newline is an `<eos>`."""
    index: defaultdict[str, int] = defaultdict()
    index.default_factory = index.__len__
    ids = (np.fromiter(map(index.__getitem__, words), np.int64, len(words)) for words in read_words(Path(path)))
    try:
        counts = count_bigrams(ids, name=str(path))
    except UnicodeDecodeError as error:
        raise TrellisError(f"{path} is not UTF-8 text; convert it first.") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TrellisError(f"Cannot read {path}: {reason}; give a text file, plain or gzipped.") from error
    order = np.argsort(-counts.words, kind="stable")
    words = list(index)
    return [words[i] for i in order], BigramCounts(counts.words[order], counts.bigrams[order][:, order])


def average_mutual_information(bigrams: sparse.csr_array, assignment: np.ndarray) -> float:
    """I(c; d) in nats between the classes of adjacent words: Σ p(c, d) log p(c, d) / p(c) p(d)."""
    table = class_table(bigrams, assignment, int(assignment.max()) + 1)
    joint = table[table > 0] / table.sum()
    apart = [margin[margin > 0] / table.sum() for margin in (table.sum(axis=1), table.sum(axis=0))]
    return float((joint * np.log(joint)).sum() - sum((p * np.log(p)).sum() for p in apart))


def _blocks(tokens: np.ndarray | Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Pieces of bounded length, none of them empty."""
    for piece in [tokens] if isinstance(tokens, np.ndarray) else tokens:
        for begin in range(0, len(piece), TOKEN_BLOCK):
            yield np.asarray(piece[begin : begin + TOKEN_BLOCK])


def _check_ids(block: np.ndarray, vocab_size: int | None) -> None:
    if block.ndim != 1 or block.dtype.kind not in "iu":
        raise TrellisError(f"Word ids must be one row of integers, not {block.ndim}-D {block.dtype}; encode it first.")
    low, high = int(block.min()), int(block.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        wrong = low if low < 0 else high
        raise TrellisError(f"Word id {wrong} is not in the vocabulary; encode the corpus with that vocabulary.")


def _pairs(first: np.ndarray, second: np.ndarray, size: int) -> sparse.csr_array:
    ones = np.ones(len(first), np.int64)
    return sparse.coo_array((ones, (first, second)), shape=(size, size)).tocsr()


def _push(parts: list[sparse.csr_array], part: sparse.csr_array) -> None:
    """Add to a stack whose parts shrink by half or more, so that summing costs O(B log) in all."""
    parts.append(part)
    while len(parts) > 1 and parts[-2].nnz < 2 * parts[-1].nnz:
        parts.append(_sum(parts.pop(), parts.pop()))


def _sum(newer: sparse.csr_array, older: sparse.csr_array) -> sparse.csr_array:
    older.resize(newer.shape)
    return older + newer


def _add(totals: np.ndarray, more: np.ndarray) -> np.ndarray:
    more[: len(totals)] += totals
    return more


def read_words(path: Path) -> Iterator[list[str]]:
    """The words of a text in pieces of bounded length, `<eos>` for every newline."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        cut = ""
        while block := file.read(TEXT_BLOCK):
            text = (cut + block).replace("\n", f" {EOS} ")
            words = text.split()
            cut = "" if text[-1].isspace() else words.pop()
            yield words
        yield [cut] if cut else []
