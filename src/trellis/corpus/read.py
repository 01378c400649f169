"""File readers. Each yields text in which a newline ends a sentence and DOCUMENT begins a document."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from trellis.corpus.headings import compile_heading, heading_starts
from trellis.corpus.tokenize import DOCUMENT, LINE
from trellis.errors import TrellisError
from trellis.extensions import READERS as GROUP, entries
from trellis.options import choose, whole
from trellis.registry import resolve

if TYPE_CHECKING:
    from trellis.corpus.recipe import Recipe

BLOCK = 1 << 20  # bytes read at a time
LOOK_AHEAD = 3  # lines a heading may span
BLANKS = b" ", b"\t", b"\v", b"\f"
_BLANK_LINE = re.compile(r"^([^\S\n]*)\n", re.MULTILINE)
_BLANK_LINES = re.compile(r"(?:^[^\S\n]*\n)+", re.MULTILINE)

Report = Callable[[int], None]  # called with the number of bytes just read


class Record(NamedTuple):
    """One sequence of a file: a line, a FASTA record, or the CSV rows of one id."""

    text: str
    line: int  # the number of its first line
    id: str | None = None


def read_texts(paths: Iterable[Path], recipe: Recipe, report: Report = lambda n: None) -> Iterator[str]:
    """Stream the text of the files in order, in blocks of moderate size that end between words."""
    for path in paths:
        yield DOCUMENT
        yield from find_reader(recipe.reader).read(path, recipe, report)


def _read_plain(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """Read a text with one sentence per line; `recipe.documents` determines where documents begin."""
    return DOCUMENT_MARKERS[recipe.documents](_blocks(path, recipe, report), recipe)


def _read_fasta(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """Read a FASTA file. Each record is a one-sentence document: its lines joined, without its header."""
    return _gather(_fasta_pieces(_blocks(path, recipe, report), str(path)))


def _fasta_pieces(blocks: Iterable[str], name: str) -> Iterator[str]:
    is_open = has_header = False
    for line in chain.from_iterable(block.split(LINE) for block in blocks):
        header = line.startswith(">")
        has_header = has_header or header
        if not has_header and line.strip():
            raise TrellisError(f"{name} is not FASTA: it does not begin with a header (>); use another reader.")
        if header:
            yield LINE + DOCUMENT if is_open else DOCUMENT
        else:
            yield line.strip()
        is_open = not header and (is_open or bool(line.strip()))
    if is_open:
        yield LINE


def _text_records(lines: Iterable[str], recipe: Recipe, name: str) -> Iterator[Record]:
    """One record per line, including blank lines."""
    return (Record(line, number) for number, line in enumerate(lines, 1))


def _fasta_records(lines: Iterable[str], recipe: Recipe, name: str) -> Iterator[Record]:
    """The records of a FASTA file. The id of a record is the first word of its header. An empty record is an empty
    sentence."""
    header, pieces = None, list[str]()
    for number, line in enumerate(lines, 1):
        if line.startswith(">"):
            if header is not None:
                yield Record("".join(pieces), *header)
            header, pieces = (number, (line[1:].split() or [""])[0]), []
        elif header is None and line.strip():
            raise TrellisError(f"{name} is not FASTA: line {number} precedes the first header (>); use another reader.")
        else:
            pieces.append(line.strip())
    if header is not None:
        yield Record("".join(pieces), *header)


def _read_csv(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """Read a CSV file. Each record is a one-sentence document."""
    records = _csv_records(lines_of(path, recipe, report), recipe, str(path))
    return _gather(DOCUMENT + record.text + LINE for record in records)


def _read_arrow(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    from trellis.corpus import arrow

    return arrow.read(path, recipe, report)


def _csv_records(lines: Iterable[str], recipe: Recipe, name: str) -> Iterator[Record]:
    """One record per row, from the column `recipe.column`. With "id:event", adjacent rows with the same id form one
    record.

    Spaces inside an event become underscores, so that the event is one token."""
    table = csv.reader((line + LINE for line in lines), strict=True)
    try:
        rows = _numbered_rows(table)
        line, first = next(rows, (1, []))
        key, column, has_header = _find_columns(first, recipe.column, name)
        body = _wide_enough(rows if has_header else chain([(line, first)], rows), max(key or 0, column), name)
        if ":" not in recipe.column or recipe.column in first:
            yield from (
                Record(" ".join(row[column].split()), line, None if key is None else row[key]) for line, row in body
            )
        else:
            for own, group in groupby(body, key=lambda numbered: numbered[1][key or 0]):
                events = [(line, "_".join(row[column].split())) for line, row in group]
                yield Record(" ".join(event for _, event in events), events[0][0], own)
    except csv.Error as error:
        raise TrellisError(f"{name} is not a readable CSV file: line {table.line_num}: {error}.") from error


def _numbered_rows(table: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of their first line."""
    line = 1
    for row in table:
        yield line, row
        line = table.line_num + 1


def _find_columns(header: list[str], wanted: str, name: str) -> tuple[int | None, int, bool]:
    """The index of the id column, the index of the wanted column, and whether they were found by name. "id:event" names
    both columns.

    If only one column is wanted and found by name, the id column is the one with the heading "id"; otherwise it is
    None."""
    names = [wanted] if wanted in header or ":" not in wanted else wanted.split(":", 1)
    by_name = all(one in header for one in names)
    if not by_name and not all((place := whole(one)) is not None and place < len(header) for one in names):
        cells = ", ".join(cell[:80] for cell in header)
        raise TrellisError(f"{name} has no column {wanted!r}; its first row is {cells}.")
    *key, column = [header.index(one) if by_name else int(one) for one in names]
    ids = [i for i, heading in enumerate(header) if by_name and heading.lower() == "id" and i != column]
    return next(iter(key or ids), None), column, by_name


def _wide_enough(rows: Iterable[tuple[int, list[str]]], last: int, name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty; raises if one of them has no column `last`."""
    for line, row in rows:
        if row and len(row) <= last:
            what = f"a row with {len(row)} columns in line {line}, expected at least {last + 1}"
            raise TrellisError(f"{name} has {what}: {','.join(row)[:60]!r}.")
        if row:
            yield line, row


@dataclass(frozen=True)
class Reader:
    """A file format; other packages add readers through the entry point group `trellis.readers`.

    `read` yields the text of a file in pieces of moderate size that end between two words. A newline ends a sentence,
    and DOCUMENT begins a document. `read` also calls `report` with the number of bytes it has read. For line-based
    formats, `lines_of` does most of this.

    `records` is optional. It yields the records of a command's input with their ids, as the lines arrive. Without it,
    the sentences from `read` are records without ids."""

    read: Callable[[Path, Recipe, Report], Iterator[str]]
    suffixes: tuple[str, ...] = ()  # of the files that it reads unless data.reader is set
    choices: Mapping[str, Any] = field(default_factory=dict)  # defaults of [data] options in this format
    records: Callable[[Iterable[str], Recipe, str], Iterator[Record]] | None = None
    order: str = ""  # the default of batches.order; empty: that of the model's family
    version: str = ""  # change it when the reader changes, so that files are encoded again


READERS = {
    "text": Reader(_read_plain, (".txt",), records=_text_records),
    "fasta": Reader(_read_fasta, (".fasta", ".fa"), {"tokenizer": "symbols"}, _fasta_records, order="sentences"),
    "csv": Reader(_read_csv, (".csv",), records=_csv_records, order="sentences"),
    "arrow": Reader(_read_arrow, (".arrow", ".feather", ".parquet"), order="sentences"),
}


def find_reader(name: str, option: str = "data.reader") -> Reader:
    """The reader called `name`, built in or from an installed package. Error messages call the option `option`."""
    if name in READERS:
        return READERS[name]
    path = choose(dict.fromkeys(READERS, "") | entries(GROUP), name, option)
    reader = resolve(path)
    if not isinstance(reader, Reader):
        raise TrellisError(f"The entry point {name!r} of {GROUP} is {path!r}, which is not a Reader.")
    return reader


def reader_of_suffix(suffix: str, default: str = "text") -> str:
    """The name of the reader for a file suffix, or `default` if there is none. Built-in readers take precedence."""
    own = (name for name, reader in READERS.items() if suffix in reader.suffixes)
    others = (name for name in entries(GROUP) if suffix and suffix in find_reader(name).suffixes)
    return next(chain(own, others), default)


def suffix_of(path: Path) -> str:
    """The suffix of a file name, without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix


def lines_of(path: Path, recipe: Recipe, report: Report) -> Iterator[str]:
    """The lines of a file, plain or .gz, decoded, without their ends."""
    return (line.removesuffix(LINE) for line in _lines(_blocks(path, recipe, report)))


def _mark_files(blocks: Iterator[str], recipe: Recipe) -> Iterator[str]:
    """Return the text unchanged: each file is one document, and a blank line is an empty sentence."""
    return blocks


def _mark_blank_lines(blocks: Iterator[str], recipe: Recipe) -> Iterator[str]:
    """Mark blank lines, which separate documents. If every byte of the text is kept, a blank line is also an empty
    sentence at the end of a document; otherwise it is not a sentence."""
    pattern, mark = (_BLANK_LINES, rf"\g<0>{DOCUMENT}") if recipe.exact else (_BLANK_LINE, rf"{DOCUMENT}\1 ")
    at_line_start, pending = True, ""
    for block in blocks:
        rest_of_line = 0 if at_line_start else block.find(LINE) + 1 or len(block)
        text = block[:rest_of_line] + pattern.sub(mark, block[rest_of_line:])
        begin = "" if _BLANK_LINES.match(block) else pending
        pending = DOCUMENT if recipe.exact and text.endswith(DOCUMENT) else ""
        yield begin + text.removesuffix(pending)
        at_line_start = block.endswith(LINE)


def _mark_headings(blocks: Iterator[str], recipe: Recipe) -> Iterator[str]:
    """Begin a document at each heading. The last lines of a block are held back until the next block arrives."""
    heading = compile_heading(recipe.heading)
    kept = ""
    for block in chain(blocks, [None]):
        text = kept + (block or "")
        cut = len(text) if block is None else _cut_point(text)
        starts = [start for start in heading_starts(heading, text) if start < cut]
        bounds = [0, *starts, cut]
        yield DOCUMENT.join(text[start:stop] for start, stop in pairwise(bounds))
        kept = text[cut:]


DOCUMENT_MARKERS: dict[str, Callable[[Iterator[str], Recipe], Iterator[str]]] = {
    "file": _mark_files,
    "blank": _mark_blank_lines,
    "heading": _mark_headings,
}


def _cut_point(text: str) -> int:
    """The length of the text without its last lines, in which a heading may begin; the whole length if lines are very
    long."""
    position = len(text)
    for _ in range(LOOK_AHEAD + 1):
        position = max(text.rfind(LINE, 0, position), 0)
    return position + 1 if position else len(text) if len(text) > LOOK_AHEAD * BLOCK else 0


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Join the blocks and yield whole lines, of any length."""
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
    """The text of a file, plain or .gz."""
    return decode_blocks(read_blocks(path, report), str(path), recipe)


def decode_blocks(blocks: Iterable[bytes], name: str, recipe: Recipe) -> Iterator[str]:
    """Decode bytes as text, in blocks that end after a newline if possible, else after a space, else after a character.

    Blanks before a newline are in the block of this newline. A newline is appended if the text does not end with one.
    """
    read, lines, kept, complete = 0, 1, b"", True
    for data in blocks:
        data = kept + data
        if len(data) < BLOCK and not data.strip(b" \t\r"):
            kept = data
            continue
        cut = data.rfind(b"\n") + 1 or max(data.rfind(b) for b in BLANKS) + 1 or _character_boundary(data)
        yield _decode(data[:cut], name, read, lines, recipe)
        read, lines = read + cut, lines + data.count(b"\n", 0, cut)
        kept, complete = data[cut:], data[cut - 1 : cut] == b"\n"
    if kept or not complete:
        yield _decode(kept, name, read, lines, recipe) + LINE


def read_blocks(path: Path, report: Report = lambda n: None) -> Iterator[bytes]:
    """The bytes of a file, plain or .gz."""
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
    data = b"".join(read_blocks(path))
    try:
        return data.decode("utf-8-sig").replace("\r\n", LINE).removesuffix(LINE).split(LINE)
    except UnicodeDecodeError as error:
        raise TrellisError(f"{path} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}.") from error


def _character_boundary(data: bytes) -> int:
    """The end of the data, moved back if it falls inside a UTF-8 character or between \\r and \\n."""
    if data.endswith(b"\r"):
        return len(data) - 1
    for back in range(1, min(len(data), 3) + 1):
        if data[-back] & 0xC0 != 0x80:
            return len(data) - back if data[-back] >= 0xC0 else len(data)
    return len(data)


def _decode(data: bytes, name: str, position: int, line: int, recipe: Recipe) -> str:
    """Decode bytes that start at offset `position`, in `line`; only the bytes tokenizer accepts invalid UTF-8."""
    try:
        text = data.decode("utf-8", "surrogateescape" if recipe.tokenizer == "bytes" else "strict")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise TrellisError(
            f"{name} is not UTF-8 text: byte {position + error.start} is 0x{data[error.start]:02x} (line {line}); "
            'convert it, or use tokenizer = "bytes".'
        ) from error
    if recipe.exact:
        return text
    text = text.removeprefix("\ufeff") if position == 0 else text
    return text.replace("\r\n", LINE).replace("\0", " ")
