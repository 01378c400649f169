"""Streaming file readers; each yields text in which a newline ends a sentence and a NUL begins a document."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trellis.corpus.tokenize import DOCUMENT, LINE
from trellis.errors import TrellisError
from trellis.extensions import READERS as GROUP
from trellis.extensions import entries
from trellis.options import choose
from trellis.registry import resolve

if TYPE_CHECKING:
    from trellis.corpus.recipe import Recipe

BLOCK = 1 << 20  # bytes read at a time
LOOK_AHEAD = 3  # lines a heading may span
BLANKS = b" ", b"\t", b"\v", b"\f"
_BLANK_LINE = re.compile(r"^[^\S\n]*\n", re.MULTILINE)

Report = Callable[[int], None]  # called with the number of bytes just read


def read_texts(paths: Iterable[Path], recipe: Recipe, report: Report = lambda n: None) -> Iterator[str]:
    """Stream the text of the files in order, in moderate blocks that end between words."""
    for path in paths:
        yield DOCUMENT
        yield from find_reader(recipe.reader).read(path, recipe, report)


def _read_plain(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """One sentence per line; document boundaries follow the recipe."""
    return DOCUMENT_MARKERS[recipe.documents](_blocks(path, recipe, report), recipe)


def _read_fasta(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """Each record is a one-sentence document: its lines joined, without its header."""
    return _gather(_fasta_pieces(_blocks(path, recipe, report)))


def _fasta_pieces(blocks: Iterable[str]) -> Iterator[str]:
    is_open = False
    for line in chain.from_iterable(block.split(LINE) for block in blocks):
        header = line.startswith(">")
        if header:
            yield LINE + DOCUMENT if is_open else DOCUMENT
        else:
            yield line.strip()
        is_open = not header and (is_open or bool(line.strip()))
    if is_open:
        yield LINE


def _read_csv(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """Each row's `column` is a one-sentence document; with "id:event", adjacent rows with the same id form one."""
    rows = csv.reader(_lines(_blocks(path, recipe, report)))
    try:
        first = next(rows, [])
        columns, has_header = _find_columns(first, recipe.column, path)
        body = rows if has_header else chain([first], rows)
        yield from _gather(DOCUMENT + text + LINE for text in _sequences(body, columns, path))
    except csv.Error as error:
        raise TrellisError(f"{path} is not a readable CSV file: line {rows.line_num}: {error}.") from error


def _find_columns(header: list[str], wanted: str, path: Path) -> tuple[list[int], bool]:
    """Indices of the wanted column, or of both parts of "id:event", and whether they were found by name."""
    names = [wanted] if wanted in header or ":" not in wanted else wanted.split(":", 1)
    if all(name in header for name in names):
        return [header.index(name) for name in names], True
    if all(name.isdecimal() and int(name) < len(header) for name in names):
        return [int(name) for name in names], False
    raise TrellisError(f"{path} has no column {wanted!r}; its first row is {', '.join(header)}.")


def _sequences(rows: Iterable[list[str]], columns: list[int], path: Path) -> Iterator[str]:
    """The text of each sequence; spaces inside an event become underscores to keep it one token."""
    cells = ([row[column] for column in columns] for row in _checked_rows(rows, max(columns), path))
    if len(columns) == 1:
        return (" ".join(cell.split()) for (cell,) in cells)
    groups = groupby(cells, key=lambda pair: pair[0])
    return (" ".join("_".join(event.split()) for _, event in group) for _, group in groups)


def _checked_rows(rows: Iterable[list[str]], last: int, path: Path) -> Iterator[list[str]]:
    for row in rows:
        if row and len(row) <= last:
            start = ",".join(row)[:60]
            raise TrellisError(f"{path} has a row with {len(row)} columns, expected at least {last + 1}: {start!r}.")
        if row:
            yield row


@dataclass(frozen=True)
class Reader:
    """How files of a format are read; another package adds one by an entry point of the group `trellis.readers`.

    `read` yields the text of one file in pieces of moderate size that end between two words. In it a newline ends a
    sentence, and DOCUMENT begins a document; one has begun where the file does. It tells `report` how many bytes of the
    file it has read. `lines_of` does most of that for formats made of lines."""

    read: Callable[[Path, Recipe, Report], Iterator[str]]
    suffixes: tuple[str, ...] = ()  # of files that are read so unless data.reader says otherwise
    choices: Mapping[str, Any] = field(default_factory=dict)  # options of [data] with another default in this format
    order: str = ""  # batches.order unless it is given; empty: the default of the model's family
    version: str = ""  # change it where the same file is read otherwise, so that the cache is not asked


READERS = {
    "text": Reader(_read_plain, (".txt",)),
    "fasta": Reader(_read_fasta, (".fasta", ".fa"), {"tokenizer": "symbols"}, "sentences"),
    "csv": Reader(_read_csv, (".csv",), order="sentences"),
}


def find_reader(name: str) -> Reader:
    """The reader of that name, ours or that of an installed package."""
    if name in READERS:
        return READERS[name]
    path = choose(dict.fromkeys(READERS, "") | entries(GROUP), name, "data.reader")
    reader = resolve(path)
    if not isinstance(reader, Reader):
        raise TrellisError(f"The entry point {name!r} of {GROUP} is {path!r}, which is not a Reader.")
    return reader


def reader_of_suffix(suffix: str) -> str:
    """The name of the reader of files whose names end so, ours first; plain text where nobody claims them."""
    own = (name for name, reader in READERS.items() if suffix in reader.suffixes)
    others = (name for name in entries(GROUP) if suffix and suffix in find_reader(name).suffixes)
    return next(chain(own, others), "text")


def lines_of(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """The lines of a file, plain or .gz, decoded, without their ends."""
    return (line.removesuffix(LINE) for line in _lines(_blocks(path, recipe, report)))


def _mark_files(blocks: Iterator[str], recipe: Recipe) -> Iterator[str]:
    """Each file is one document; a blank line is an empty sentence."""
    return blocks


def _mark_blank_lines(blocks: Iterator[str], recipe: Recipe) -> Iterator[str]:
    """Blank lines separate documents and are not sentences themselves."""
    at_line_start = True
    for block in blocks:
        rest_of_line = 0 if at_line_start else block.find(LINE) + 1 or len(block)
        yield block[:rest_of_line] + _BLANK_LINE.sub(DOCUMENT, block[rest_of_line:])
        at_line_start = block.endswith(LINE)


def _mark_headings(blocks: Iterator[str], recipe: Recipe) -> Iterator[str]:
    """A document begins at each heading match; the last lines of a block are held back until the next arrives."""
    heading = re.compile(recipe.heading, re.MULTILINE)
    kept = ""
    for block in chain(blocks, [None]):
        text = kept + (block or "")
        cut = len(text) if block is None else _cut_point(text)
        starts = [match.start() for match in heading.finditer(text) if match.start() < cut]
        bounds = [0, *starts, cut]
        yield DOCUMENT.join(text[start:stop] for start, stop in pairwise(bounds))
        kept = text[cut:]


DOCUMENT_MARKERS: dict[str, Callable[[Iterator[str], Recipe], Iterator[str]]] = {
    "file": _mark_files,
    "blank": _mark_blank_lines,
    "heading": _mark_headings,
}


def _cut_point(text: str) -> int:
    """Length of the text without its last lines, where a heading may begin; all of it if lines are overlong."""
    position = len(text)
    for _ in range(LOOK_AHEAD + 1):
        position = max(text.rfind(LINE, 0, position), 0)
    return position + 1 if position else len(text) if len(text) > LOOK_AHEAD * BLOCK else 0


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Whole lines of any length."""
    kept = ""
    for block in blocks:
        *whole, kept = (kept + block).split(LINE)
        yield from (line + LINE for line in whole)


def _gather(pieces: Iterable[str]) -> Iterator[str]:
    """Join the pieces into fewer, larger ones."""
    held: list[str] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= BLOCK:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)


def _blocks(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """The text of a file, plain or .gz, in blocks cut after a newline, else after a space, else between characters.

    A newline is appended if the file does not end with one.
    """
    position, kept, complete = 0, b"", True
    for data in _raw_blocks(path, report):
        data = kept + data
        cut = data.rfind(b"\n") + 1 or max(data.rfind(b) for b in BLANKS) + 1 or _character_boundary(data)
        yield _decode(data[:cut], path, position, recipe)
        position, kept, complete = position + cut, data[cut:], data[cut - 1 : cut] == b"\n"
    if kept or not complete:
        yield _decode(kept, path, position, recipe) + LINE


def _raw_blocks(path: Path, report: Report) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            content: IO[bytes] = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file  # type: ignore[assignment]
            seen = 0
            while data := content.read(BLOCK):
                report(file.tell() - seen)
                seen = file.tell()
                yield data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TrellisError(f"{path} is not a complete gzip file ({error}); download or pack it again.") from error
    except OSError as error:
        raise TrellisError(f"Cannot read {path}: {error.strerror or error}.") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, plain or .gz, without line endings."""
    data = b"".join(_raw_blocks(path, lambda n: None))
    try:
        return data.decode("utf-8-sig").replace("\r\n", LINE).removesuffix(LINE).split(LINE)
    except UnicodeDecodeError as error:
        raise TrellisError(f"{path} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}.") from error


def _character_boundary(data: bytes) -> int:
    """The end of the data, moved back if it falls inside a UTF-8 character or between \\r and \\n."""
    if data.endswith(b"\r"):
        return len(data) - 1
    for back in range(1, min(len(data), 4)):
        if data[-back] & 0xC0 != 0x80:
            return len(data) - back if data[-back] >= 0xC0 else len(data)
    return len(data)


def _decode(data: bytes, path: Path, position: int, recipe: Recipe) -> str:
    """Decode bytes that start at offset `position`; only the bytes tokenizer accepts invalid UTF-8."""
    try:
        text = data.decode("utf-8", "surrogateescape" if recipe.tokenizer == "bytes" else "strict")
    except UnicodeDecodeError as error:
        raise TrellisError(
            f"{path} is not UTF-8 text: byte {position + error.start} is 0x{data[error.start]:02x}; "
            'convert the file, or use tokenizer = "bytes".'
        ) from error
    text = text.removeprefix("\ufeff") if position == 0 else text
    return text.replace("\r\n", LINE).replace(DOCUMENT, " ")
