"""Records of a file or of standard input, in chunks, as they arrive."""

import glob
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from trellis.corpus.read import BLOCK, Record, decode_blocks, find_reader, read_blocks, read_texts
from trellis.corpus.recipe import Recipe
from trellis.corpus.sources import WHOLE, find_source
from trellis.corpus.tokenize import DOCUMENT, LINE
from trellis.errors import TrellisError

PATIENCE = 0.05  # seconds to wait for more input before a chunk that is not full is processed
STANDARD_INPUT = "Standard input"

A = TypeVar("A")


class Arriving:
    """The lines of a file (plain or .gz), or of standard input as they arrive."""

    def __init__(self, path: Path | None, recipe: Recipe) -> None:
        self.stream = sys.stdin.buffer if path is None and sys.stdin else None
        blocks = read_blocks(path) if path else _arriving(self.stream) if self.stream else ()
        self.texts = decode_blocks(blocks, str(path or STANDARD_INPUT), recipe)
        self.lines, self.kept = deque[str](), ""

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            *whole, self.kept = (self.kept + text).split(LINE)
            self.lines.extend(whole)
            while self.lines:
                yield self.lines.popleft()

    def idle(self) -> bool:
        """Whether the next line has yet to arrive."""
        return not self.lines and self.stream is not None and not _has_more(self.stream)


@dataclass(frozen=True)
class Records:
    """Records to be processed one by one, or in chunks."""

    records: Iterable[Record]
    unit: str = "Line"  # what `Record.line` counts
    idle: Callable[[], bool] = lambda: False  # whether the next record has to be waited for

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def in_chunks(self, items: Iterable[A], size: Callable[[A], int], most: int) -> Iterator[list[A]]:
        """Lists of items, which are computed from the records one by one. A list ends when its total size reaches
        `most`, or when the next record has not arrived yet."""
        chunk, total = list[A](), 0
        for item in items:
            chunk.append(item)
            total += size(item)
            if total >= most or self.idle():
                yield chunk
                chunk, total = [], 0
        if chunk:
            yield chunk


def given_records(texts: Sequence[str]) -> Records:
    """The given sentences as records; raises if one of them has several lines."""
    for number, text in enumerate(texts, 1):
        if LINE in text:
            raise TrellisError(f"Sentence {number} has {text.count(LINE) + 1} lines; pass one line per argument.")
    return Records([Record(text, number) for number, text in enumerate(texts, 1)], "Sentence")


def read_records(path: Path | None, recipe: Recipe) -> Records:
    """The records of a file, or of standard input (None)."""
    records, name = find_reader(recipe.reader).records, str(path or STANDARD_INPUT)
    if records is None:
        return Records(_read_by_file(path, recipe), "Sentence")
    lines = Arriving(path, recipe)
    return Records(records(lines, recipe, name), idle=lines.idle)


def files_of(path: Path | None) -> list[Path | None]:
    """The files that a path names, sorted: one file, the files of a folder, or all that match a pattern such as
    x-*.gz."""
    if path is None or path.is_file() or not (path.is_dir() or any(mark in str(path) for mark in "*?[")):
        return [path]
    found = path.rglob("*") if path.is_dir() else map(Path, glob.iglob(str(path), recursive=True))
    files = sorted(file for file in found if file.is_file() and not file.name.startswith("."))
    if not files:
        raise TrellisError(f"There are no files in {path}." if path.is_dir() else f"No file matches {path}.")
    return [*files]


def read_files(paths: Sequence[Path | None], recipe: Recipe) -> Records:
    """The records of several files, one after another, as a stream."""
    if len(paths) == 1:
        return read_records(paths[0], recipe)
    unit = read_records(paths[0], recipe).unit
    return Records((record for path in paths for record in read_records(path, recipe)), unit)


def _read_by_file(path: Path | None, recipe: Recipe) -> Iterator[Record]:
    """The sentences of a reader that accepts only files. Standard input is spooled to disk for it."""
    with find_source("-" if path is None else str(path)) as source:
        text = (piece.replace(DOCUMENT, "") for piece in read_texts(source.files[WHOLE], recipe))
        number, kept = 1, ""
        for piece in text:
            *whole, kept = (kept + piece).split(LINE)
            yield from (Record(line, number) for number, line in enumerate(whole, number))
            number += len(whole)


def _arriving(stream: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a stream as they arrive, in blocks of at most BLOCK bytes."""
    while data := stream.read1(BLOCK):  # type: ignore[attr-defined]
        yield data


def _has_more(stream: IO[bytes]) -> bool:
    try:
        return bool(select.select([stream], [], [], PATIENCE)[0])
    except (OSError, ValueError):  # not a file of the operating system: nothing to wait for
        return True
