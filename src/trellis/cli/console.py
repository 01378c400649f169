"""How answers look on a terminal: tables by rich where it is installed, aligned columns where it is not."""

from __future__ import annotations

import importlib.util
import shutil
import string
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from trellis.report.format import (
    COLUMNS,
    Column,
    columns_of,
    difference,
    log_prob,
    p_value,
    percent,
    perplexity,
    probability,
    text,
    word,
)

if TYPE_CHECKING:
    from trellis.models.base import Infilled, Ranked, StateSummary
    from trellis.tasks.compare import Context, Row

GAP = "  "
NARROWEST = 12  # characters left to a column of text
STATES = {"streams": "carried", "documents": "carried in documents", "sentences": "reset"}  # by the order of batches
BANDS = {"by_frequency": "training count", "by_position": "words before"}


class Answer(NamedTuple):
    """What a command found: for machines, and for people."""

    data: Any
    show: Callable[[], None]
    exit_code: int = 0


def note(sentence: str) -> None:
    """One line of plain text."""
    sys.stdout.write(text(sentence) + "\n")


def show_lines(lines: Iterable[str]) -> None:
    """Sentences, one a line, as another program would want to read them."""
    for line in lines:
        note(line)


def table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    """A table, the best value of a column in bold where there is one; only a note where there are no rows."""
    if not rows:
        return note(f"{title or 'answer'}: nothing to show")
    draw = _plain_table if importlib.util.find_spec("rich") is None else _rich_table
    draw(text(title), columns, rows)


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


def show_rows(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of some keys of each row, each written in the way of its name."""
    table(title, columns_of(columns), [[row[name] for name in columns] for row in rows])


def show_comparison(rows: Sequence[Row]) -> None:
    """Models side by side; the first table gives each a letter."""
    names = [string.ascii_uppercase[i] if i < 26 else str(i + 1) for i in range(len(rows))]
    lettered = list(zip(names, rows, strict=True))
    _show_perplexities(lettered)
    for kind, heading in BANDS.items():
        bands = zip(*(getattr(row, kind) for row in rows), strict=True)
        columns = Column(heading), COLUMNS["tokens"], *(Column(name, perplexity) for name in names)
        values = [(same[0].name, same[0].tokens, *(band.perplexity for band in same)) for same in bands]
        table(f"perplexity by {heading}", columns, values)
    others = [(name, row.against_first) for name, row in lettered if row.against_first is not None]
    if others:
        signed = (Column(heading, difference) for heading in ("minus A", "95% from", "to"))
        shown = [(name, *vars(other.perplexity).values()) for name, other in others]
        table("difference in perplexity, paired bootstrap", (Column(""), *signed, Column("p", p_value)), shown)
    for name, other in others:
        show_contexts("A", name, other.gains)
        show_contexts(name, "A", other.losses)


def _show_perplexities(rows: Sequence[tuple[str, Row]]) -> None:
    """One line for each model; an interpolation is written as a sum of models."""

    def mixed(row: Row) -> str:
        return " + ".join(f"{weight:.3f} {name}" for weight, (name, _) in zip(row.weights or (), rows, strict=False))

    shown = [
        (name, mixed(row) or row.model, row.family, row.perplexity, row.tokens, STATES.get(row.order, row.order))
        for name, row in rows
    ]
    figures = Column("perplexity", perplexity, min), COLUMNS["tokens"]
    columns = Column(""), Column("model"), Column("family"), *figures, Column("state")
    table("every token counts, <eos> and <unk> too", columns, shown)


def show_contexts(loser: str, winner: str, contexts: Sequence[Context]) -> None:
    """Words in their sentences, with both log-probabilities."""
    if contexts:
        columns = Column("context"), Column(f"log p {loser}", log_prob), Column(winner, log_prob)
        table(f"where {loser} loses most to {winner}", columns, [tuple(vars(context).values()) for context in contexts])


def show_states(summaries: Sequence[StateSummary]) -> None:
    """What states say and where they lead."""
    columns = COLUMNS["state"], Column("share", percent), Column("words"), Column("next states")
    rows = [
        (
            state.state,
            state.occupancy,
            " ".join(word(token) for token, _ in state.words),
            " ".join(f"{z} ({probability(p).removeprefix('0')})" for z, p in state.next_states),
        )
        for state in summaries
    ]
    table("most telling states", columns, rows)


def show_ranked(title: str, ranked: Ranked) -> None:
    """Words with their probabilities."""
    table(title, (Column("word", word), COLUMNS["probability"]), ranked)


def show_infilled(line: str, answer: Infilled) -> None:
    """A sentence with gaps: the words for each gap, the most probable completion and some drawn ones."""
    note(line)
    for number, ranked in enumerate(answer.gaps, 1):
        show_ranked(f"gap {number}", ranked)
    note(f"best    {answer.best}")
    show_lines(f"sample  {sample}" for sample in answer.samples)


def show_scores(rows: Sequence[Mapping[str, Any]]) -> None:
    """log p and perplexity of each sentence, then of each of its tokens where asked."""
    columns = Column("log p", log_prob), COLUMNS["perplexity"], Column("text")
    table("", columns, [(row["log_prob"], row["perplexity"], row["text"]) for row in rows])
    for row in rows:
        if "tokens" in row:
            table(row["text"], (COLUMNS["token"], Column("log p", log_prob)), row["tokens"])


def show_facts(facts: Mapping[str, Any]) -> None:
    """Names and values, one a line; a table inside is indented."""
    lines: list[tuple[str, str]] = []
    for name, value in facts.items():
        inside = value.items() if isinstance(value, Mapping) else ()
        lines.append((name, "" if inside else _fact(name, value)))
        lines += ((f"  {inner}", _fact(inner, entry)) for inner, entry in inside)
    widest = max((len(name) for name, _ in lines), default=0)
    show_lines(f"{name:<{widest}}  {value}".rstrip() for name, value in lines)


def _fact(name: str, value: Any) -> str:
    """A value in the way of its name; other numbers to four digits, whole ones with thousands separators."""
    if name in COLUMNS and isinstance(value, int | float):
        return COLUMNS[name].write(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else text(value)
