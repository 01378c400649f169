"""Command output as printable blocks, TSV and JSON; tables use rich if it is installed."""

import csv
import importlib.util
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, TextIO

from trellis.report.format import COLUMNS, Column, columns_of, text

GAP = "  "
FORMULA = re.compile(  # a mark with a letter or digit behind it, but not a number
    r"\s*[=+@\uff1d\uff0b\uff0d\uff20-](?=.*\w)(?!\d*\.?\d*(?:[eE][+-]?\d+)?\s*$)", re.DOTALL
)
NARROWEST = 12  # minimum width of a text column
SHORTEST = 6  # ... and of a word


class Block(Protocol):
    """A part of a command's output: a table, a text or a list."""

    def show(self) -> None: ...


class Answer(NamedTuple):
    """The result of a command: JSON data and the blocks that a terminal shows, or `Rows`."""

    data: Any
    blocks: Sequence[Block] = ()
    exit_code: int = 0

    def write(self, as_json: bool = False) -> None:
        """Print the answer."""
        if isinstance(self.data, Rows):
            self.data.write(as_json)
        elif as_json:
            write_json(self.data)
        else:
            for block in self.blocks:
                block.show()
        sys.stdout.flush()


class Rows(NamedTuple):
    """Rows in chunks, each printed as soon as it is computed: as JSON lines, as blocks on a terminal, else as TSV."""

    chunks: Iterable[Sequence[Any]]
    show: Callable[[Any], Sequence[Block]]  # what a terminal shows of a chunk
    cells: Callable[[Any], Mapping[str, Any]] | None = dict  # the TSV columns of a row; None: blocks, as on a terminal

    def write(self, as_json: bool) -> None:
        has_heading = False
        for chunk in self.chunks:
            if as_json:
                for row in chunk:
                    write_json(row)
            elif self.cells is None or sys.stdout.isatty():
                for block in self.show(chunk):
                    block.show()
            else:
                write_rows(sys.stdout, map(self.cells, chunk), not has_heading)
                has_heading = has_heading or bool(chunk)
            sys.stdout.flush()


def write_json(data: Any) -> None:
    line = json.dumps(finite(data), ensure_ascii=False)
    if not line.isprintable():  # \x7f to \x9f, which JSON allows, can control a terminal
        line = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
    sys.stdout.write(line + "\n")


class UnixLines(NamedTuple):
    """A file in which lines end with "\\n", although the csv.writer ends them with "\\r\\n" in order to quote both."""

    file: TextIO

    def write(self, line: str) -> int:
        return self.file.write(line.removesuffix("\r\n") + "\n")


def write_rows(file: TextIO, rows: Iterable[Mapping[str, Any]], heading: bool, dialect: str = "excel-tab") -> None:
    """Write rows as TSV or CSV, with a heading if they are the first of the file."""
    writer = csv.writer(UnixLines(file), dialect)
    for row in rows:
        if heading:
            writer.writerow(row)
        writer.writerow(map(cell, row.values()))
        heading = False


def write_heading(file: TextIO, row: Mapping[str, Any], dialect: str = "excel-tab") -> None:
    """Write the heading of a table that has no rows."""
    csv.writer(UnixLines(file), dialect).writerow(row)


def cell(value: Any) -> Any:
    """A value in a TSV or CSV file: nested values as JSON, nothing for None. Text that a spreadsheet would execute as a
    formula is preceded by an apostrophe, as in spreadsheets."""
    if isinstance(value, list | tuple | dict):
        return json.dumps(finite(value), ensure_ascii=False)
    if isinstance(value, str):
        return f"'{value}" if FORMULA.match(value) else value
    return f"{value:.8g}" if isinstance(value, float) else value


def finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON cannot represent, by null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


class Note(NamedTuple):
    """One line of plain text."""

    sentence: str

    def show(self) -> None:
        sys.stdout.write(text(self.sentence) + "\n")


class Lines(NamedTuple):
    """Plain text, one sentence per line, for piping into other programs."""

    lines: Iterable[str]

    def show(self) -> None:
        on_terminal = sys.stdout.isatty()
        for line in self.lines:
            sys.stdout.write((text(line) if on_terminal else line) + "\n")


class Table(NamedTuple):
    """Rows by key; `columns` selects and formats the keys to show (default: all, formatted by name)."""

    title: str
    rows: Sequence[Any]  # mappings, or sequences keyed by index
    columns: Mapping[Any, Column] | None = None

    def show(self) -> None:
        """Print the table with the best value of each ranked column in bold, or a note if there are no rows."""
        if not self.rows:
            return Note(f"{self.title or 'answer'}: nothing to show").show()
        columns = self.columns or dict(zip(self.rows[0], columns_of(self.rows[0]), strict=True))
        draw = _plain_table if importlib.util.find_spec("rich") is None else _rich_table
        draw(text(self.title), list(columns.values()), [[row[key] for key in columns] for row in self.rows])


class Facts(NamedTuple):
    """Names and values, one per line; nested tables are indented."""

    facts: Mapping[str, Any]

    def show(self) -> None:
        lines: list[tuple[str, str]] = []
        for name, value in self.facts.items():
            inside = value.items() if isinstance(value, Mapping) else ()
            lines.append((text(name), "" if inside else _fact(name, value)))
            lines += ((f"  {text(inner)}", _fact(inner, entry)) for inner, entry in inside)
        widest = max((len(name) for name, _ in lines), default=0)
        Lines(f"{name:<{widest}}  {value}".rstrip() for name, value in lines).show()


def _fact(name: str, value: Any) -> str:
    """Format a value by its name; other numbers to four digits, integers with thousands separators."""
    if name in COLUMNS and isinstance(value, int | float):
        return COLUMNS[name].write(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else text(value)


def _rich_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        fitting: dict[str, Any] = {"overflow": "fold"} if column.is_text else {"justify": "right", "no_wrap": True}
        drawn.add_column(Text(column.heading), **fitting)
    best = [column.best_of(values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)]
    console = Console(highlight=False)
    cells, _ = _fitting(columns, rows, console.width, len(GAP))
    for number, row in enumerate(cells):
        drawn.add_row(*(Text(cell, "bold" * (number in top)) for cell, top in zip(row, best, strict=True)))
    with console.capture() as printed:  # rich itself would end the process if nobody reads standard output
        if title:
            console.print(Text(title, "bold"), soft_wrap=True)
        console.print(drawn)
    sys.stdout.write(printed.get())


def _plain_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    """Aligned columns; the widest text column is wrapped if the line would be too long."""
    cells, widths = _fitting(columns, rows, shutil.get_terminal_size().columns, len(GAP))
    headings, gaps = [column.heading for column in columns], len(GAP) * (len(widths) - 1)
    lines = [title] if title else []
    lines += [*_folded(headings, columns, widths), "-" * (sum(widths) + gaps)]
    lines += [line for row in cells for line in _folded(row, columns, widths)]
    sys.stdout.write("\n".join(lines) + "\n\n")


def _fitting(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], room: int, gap: int
) -> tuple[list[list[str]], list[int]]:
    """The cells as text, and the widths of the columns.

    The widest text column takes the room that is left. Longer words, such as paths, are cut at the front."""
    cells = [[column.write(value) for column, value in zip(columns, row, strict=True)] for row in rows]
    headings = [column.heading for column in columns]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    excess = sum(widths) + gap * len(widths) - room
    foldable = [i for i, column in enumerate(columns) if column.is_text]
    if excess > 0 and foldable:
        widest = max(foldable, key=widths.__getitem__)
        most = max(widths[widest] - excess, SHORTEST)
        widths[widest] = max(most, NARROWEST)
        for row in cells:
            words = row[widest].split(" ")
            row[widest] = " ".join(word if len(word) <= most else f"…{word[1 - most :]}" for word in words)
    return cells, widths


def _folded(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> Iterable[str]:
    """Wrap one row of cells into lines."""
    pieces = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
    align = [str.ljust if column.is_text else str.rjust for column in columns]
    for line in zip_longest(*pieces, fillvalue=""):
        yield GAP.join(put(cell, width) for put, cell, width in zip(align, line, widths, strict=True)).rstrip()
