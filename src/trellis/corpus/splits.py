"""Streams of tokens, and their division into splits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trellis.corpus.recipe import Recipe
from trellis.corpus.sources import SPLITS
from trellis.corpus.tokenize import DOCUMENT, EOS, LINE
from trellis.errors import TrellisError

CHUNK = 1 << 22  # tokens in memory at a time
TOKEN, OFFSET, BYTE = np.dtype("<i4"), np.dtype("<i8"), np.dtype("u1")
KINDS: dict[str, np.dtype[Any]] = {
    "tokens": TOKEN,
    "sentences": OFFSET,
    "documents": OFFSET,
    "characters": OFFSET,
    "unknown": BYTE,
}
PROVISIONAL = {EOS: 0, LINE: 0, DOCUMENT: 2}  # each value except LINE's is its index in the table


class Split(NamedTuple):
    """One split as a stream of ids. Sentence i is `tokens[sentences[i]:sentences[i + 1]]`; `documents` delimits
    documents in the same way."""

    tokens: np.ndarray  # [n] int32
    sentences: np.ndarray  # [sentences + 1] int64 offsets into tokens
    documents: np.ndarray  # [documents + 1] int64 offsets into tokens
    characters: np.ndarray | None = None  # [sentences + 1] int64 offsets into the original text, newlines included
    unknown: np.ndarray | None = None  # the words read as <unk>, in order, each ended by a newline, as bytes of UTF-8

    @property
    def num_characters(self) -> int | None:
        """The number of characters of the original text, if known."""
        return None if self.characters is None else int(self.characters[-1])

    def unknown_words(self) -> list[str]:
        """The words read as <unk>, in text order. An <unk> that is in the text itself is one of them."""
        text = b"" if self.unknown is None else self.unknown.tobytes()
        return text.decode("utf-8", "surrogatepass").split(LINE)[:-1]


class Part(NamedTuple):
    """The location of a split in a stream of provisional ids."""

    stream: Split
    ranges: list[tuple[int, int]]  # half-open ranges of token positions
    documents: np.ndarray  # offsets [documents + 1] into the concatenated ranges


def open_split(path: Path) -> Split:
    """Memory-map the arrays written as `path`.tokens, .sentences and so on."""
    return Split(*(_open(path.with_suffix(f".{field}"), kind) for field, kind in KINDS.items()))


def _open(path: Path, dtype: np.dtype) -> np.ndarray:
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


def divide(stream: Split, recipe: Recipe) -> dict[str, Part]:
    """Assign documents to splits by a fixed shuffle. If there are fewer documents than splits, divide the sentences; if
    there are fewer sentences than splits, divide the tokens."""
    valid, test = recipe.valid_fraction, recipe.test_fraction
    shares = {name: share for name, share in zip(SPLITS, (1 - valid - test, valid, test), strict=True) if share > 0}
    if stream.documents.size > len(shares):
        order, ends = _shuffled(stream.documents.size - 1), _ends(stream.documents.size - 1, [*shares.values()])
        chosen = zip(shares, np.split(order, ends[:-1]), strict=True)
        return {name: _selected(stream, np.sort(documents)) for name, documents in chosen}
    if stream.sentences.size > len(shares):
        ends = stream.sentences[_ends(stream.sentences.size - 1, [*shares.values()])].tolist()
    else:
        ends = _ends(stream.tokens.size, [*shares.values()])
    return {name: contiguous(stream, *bounds) for name, bounds in zip(shares, pairwise([0, *ends]), strict=True)}


def _ends(units: int, shares: list[float]) -> list[int]:
    """The end offset of each share of the units. Held-out shares come last, and each has at least one unit."""
    held_out = [max(1, round(units * share)) for share in shares[1:]]
    if sum(held_out) >= units:
        advice = "pass a longer text, or lower data.valid_fraction and data.test_fraction"
        raise TrellisError(f"There are no words in the train split: {advice}.")
    return np.cumsum([units - sum(held_out), *held_out]).tolist()


def _shuffled(size: int) -> np.ndarray:
    """A fixed, platform-independent permutation: 0 ... size - 1 sorted by their splitmix64 hashes."""
    x = (np.arange(size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(x ^ (x >> np.uint64(31)), kind="stable")


def contiguous(stream: Split, start: int, stop: int) -> Part:
    documents = np.unique(np.clip(stream.documents, start, stop)) - start
    return Part(stream, [(start, stop)], documents)


def _selected(stream: Split, documents: np.ndarray) -> Part:
    """The given documents as a part, in their original order. Adjacent documents are joined into one range."""
    runs = np.split(documents, np.flatnonzero(np.diff(documents) > 1) + 1)
    ranges = [(int(stream.documents[run[0]]), int(stream.documents[run[-1] + 1])) for run in runs]
    lengths = np.diff(stream.documents)[documents]
    return Part(stream, ranges, np.append(0, np.cumsum(lengths)))


def mostly_letters(part: Part, table: dict[str, int], share: float) -> Part:
    """The sentences in which at least this share of the characters are letters a-z. Adjacent sentences form one
    range."""
    stream, ends = part.stream, np.asarray(part.stream.sentences)
    words = ["" if word in PROVISIONAL else word for word in table]
    sizes = np.array([(len(word), sum("a" <= letter <= "z" for letter in word)) for word in words])
    characters, letters = (np.add.reduceat(size[stream.tokens], ends[:-1]) for size in sizes.T)
    starts, stops = np.array(part.ranges).T
    place = np.searchsorted(starts, ends[:-1], side="right") - 1
    kept = (place >= 0) & (ends[1:] <= stops[place]) & (letters >= share * np.maximum(characters, 1))
    edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)).reshape(-1, 2)
    before = np.append(0, np.cumsum(np.diff(ends) * kept))
    documents = np.unique(before[np.searchsorted(ends, stream.documents)])
    return Part(stream, [(int(ends[first]), int(ends[last])) for first, last in edges], documents)


def chunks(part: Part) -> Iterator[np.ndarray]:
    for start, stop in part.ranges:
        for position in range(start, stop, CHUNK):
            yield np.asarray(part.stream.tokens[position : min(position + CHUNK, stop)])


def lacks_end(part: Part) -> bool:
    """Whether the part ends in the middle of a sentence, because a single sentence was divided."""
    return bool(part.ranges and part.stream.tokens[part.ranges[-1][1] - 1] != PROVISIONAL[EOS])
