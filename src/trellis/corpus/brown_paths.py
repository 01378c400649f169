"""Clusterings in memory, and in the usual file format: one `path<TAB>word<TAB>count` line per word."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trellis.corpus.read import read_lines
from trellis.errors import TrellisError
from trellis.options import shown, whole
from trellis.storage import atomic_write


@dataclass(frozen=True, eq=False)
class Clustering:
    """A partition of V words into C classes, which are the leaves of a binary tree."""

    assignment: np.ndarray  # [V] class of each word
    paths: list[str]  # [C] bit string from the root to each class, in tree order
    counts: np.ndarray  # [V] occurrences of each word
    ami: float | None = None  # average mutual information in nats, if known

    def save(self, path: str | Path, words: Sequence[str]) -> None:
        """Write one line per word: classes in tree order, and the most frequent words of a class first."""
        if len(words) != len(self.assignment):
            raise TrellisError(f"Got {len(words)} words for a clustering of {len(self.assignment)}; they must match.")
        for word in words:
            if not word or "\t" in word or "\n" in word:
                raise TrellisError(f"Cannot write the word {word!r} to {path}: it is empty or has a tab or newline.")
        with atomic_write(path) as file:
            for i in np.lexsort((-self.counts, self.assignment)):
                file.write(f"{self.paths[self.assignment[i]]}\t{words[i]}\t{self.counts[i]}\n".encode())

    def members(self, top: int | None = None) -> list[np.ndarray]:
        """Ids of the words of each class, most frequent first; at most `top` per class."""
        order = np.lexsort((-self.counts, self.assignment))
        ends = np.cumsum(np.bincount(self.assignment, minlength=len(self.paths)))
        return [members[:top] for members in np.split(order, ends[:-1])]


def read_paths(path: str | Path) -> tuple[list[str], Clustering]:
    """Read the words and the clustering from a paths file."""
    rows: dict[str, tuple[str, int]] = {}
    lines = read_lines(Path(path))
    if lines == [""]:
        raise TrellisError(f"{path} is empty; expected one 'path<TAB>word<TAB>count' line per word.")
    for number, line in enumerate(lines, 1):
        bits, word, count = _parse(line, f"{path}, line {number}")
        if word in rows:
            raise TrellisError(f"{path}, line {number}: duplicate word {word!r}; remove one of the lines.")
        rows[word] = bits, count
    paths = sorted({bits for bits, _ in rows.values()})
    class_of = {bits: c for c, bits in enumerate(paths)}
    assignment = np.array([class_of[bits] for bits, _ in rows.values()])
    return list(rows), Clustering(assignment, paths, np.array([count for _, count in rows.values()]))


def describe(clustering: Clustering, words: Sequence[str], top: int = 10) -> list[str]:
    """A human-readable line per class: its path, its number of words, and its most frequent words."""
    width = max(map(len, clustering.paths))
    sizes = np.bincount(clustering.assignment, minlength=len(clustering.paths))
    return [
        f"{path:<{width}}  {size:>6}  {' '.join(words[i] for i in members)}"
        for path, size, members in zip(clustering.paths, sizes, clustering.members(top), strict=True)
    ]


def _parse(line: str, where: str) -> tuple[str, str, int]:
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 3:
        raise TrellisError(f"{where}: expected 'path<TAB>word<TAB>count' but found {len(fields)} field(s).")
    bits, word, count = fields
    if set(bits) - {"0", "1"}:
        raise TrellisError(f"{where}: the path {bits!r} must be a string of 0s and 1s.")
    if (number := whole(count)) is None:
        raise TrellisError(f"{where}: the count {shown(count)} must be an integer of at most 18 digits.")
    return bits, word, number
