"""What a command answers, as blocks for people and as data for machines; tables by rich where it is installed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

from trellis.report.format import COLUMNS, Column, columns_of, text

GAP = "  "
NARROWEST = 12  # characters left to a column of text


class Block(Protocol):
    """A piece of an answer that can be printed."""

    def show(self) -> None: ...


class Answer(NamedTuple):
    """What a command found: JSON values, and how a terminal shows them."""

    data: Any
    blocks: Sequence[Block] = ()
    exit_code: int = 0


class Note(NamedTuple):
    """One line of plain text."""

    sentence: str

    def show(self) -> None:
        sys.stdout.write(text(self.sentence) + "\n")


class Lines(NamedTuple):
    """Text, one sentence a line, as another program would read it."""

    lines: Iterable[str]

    def show(self) -> None:
        for line in self.lines:
            Note(line).show()


class Table(NamedTuple):
    """Rows by key; `columns` says which keys are shown, and how (by default all, each in the way of its name)."""

    title: str
    rows: Sequence[Any]  # mappings, or sequences whose keys are their places
    columns: Mapping[Any, Column] | None = None

    def show(self) -> None:
        """Print the table, the best value of a column in bold where there is one; a note where there are no rows."""
        if not self.rows:
            return Note(f"{self.title or 'answer'}: nothing to show").show()
        columns = self.columns or dict(zip(self.rows[0], columns_of(self.rows[0]), strict=True))
        draw = _plain_table if importlib.util.find_spec("rich") is None else _rich_table
        draw(text(self.title), list(columns.values()), [[row[key] for key in columns] for row in self.rows])


class Facts(NamedTuple):
    """Names and values, one a line; a table inside is indented."""

    facts: Mapping[str, Any]

    def show(self) -> None:
        lines: list[tuple[str, str]] = []
        for name, value in self.facts.items():
            inside = value.items() if isinstance(value, Mapping) else ()
            lines.append((name, "" if inside else _fact(name, value)))
            lines += ((f"  {inner}", _fact(inner, entry)) for inner, entry in inside)
        widest = max((len(name) for name, _ in lines), default=0)
        Lines(f"{name:<{widest}}  {value}".rstrip() for name, value in lines).show()


def _fact(name: str, value: Any) -> str:
    """A value in the way of its name; other numbers to four digits, integers with thousands separators."""
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

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        fitting: dict[str, Any] = {"overflow": "fold"} if column.is_text else {"justify": "right", "no_wrap": True}
        drawn.add_column(Text(column.heading), **fitting)
    best = [column.best_of(values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)]
    for number, row in enumerate(rows):
        cells = zip(columns, row, best, strict=True)
        drawn.add_row(*(Text(column.write(value), "bold" * (number in top)) for column, value, top in cells))
    console = Console(highlight=False)
    if title:
        console.print(Text(title, "bold"), soft_wrap=True)
    console.print(drawn)


def _plain_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    """Columns side by side, the widest column of text folded where the line would be too long."""
    cells = [[column.write(value) for column, value in zip(columns, row, strict=True)] for row in rows]
    headings = [column.heading for column in columns]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    gaps = len(GAP) * (len(widths) - 1)
    excess = sum(widths) + gaps - shutil.get_terminal_size().columns
    foldable = [i for i, column in enumerate(columns) if column.is_text]
    if excess > 0 and foldable:
        widest = max(foldable, key=widths.__getitem__)
        widths[widest] = max(widths[widest] - excess, NARROWEST)
    lines = [title] if title else []
    lines += [*_folded(headings, columns, widths), "-" * (sum(widths) + gaps)]
    lines += [line for row in cells for line in _folded(row, columns, widths)]
    sys.stdout.write("\n".join(lines) + "\n\n")


def _folded(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> Iterable[str]:
    """One row of cells as the lines it takes."""
    pieces = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
    align = [str.ljust if column.is_text else str.rjust for column in columns]
    for line in zip_longest(*pieces, fillvalue=""):
        yield GAP.join(put(cell, width) for put, cell, width in zip(align, line, widths, strict=True)).rstrip()
