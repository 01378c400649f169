"""Tables of our figures next to the published ones, from stored results: nothing is computed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from experiments.experiment import Experiment, Row, Table
from experiments.facts import flat, write_fact
from experiments.results import Result
from trellis.options import to_tables

MISSING, STALE = "-", "†"
BAR = r"\|"  # in a cell of Markdown
LEGEND = f"{MISSING} no result yet; {STALE} of another configuration than the TOML file has now; not counted as filled."


class Cell(NamedTuple):
    text: str
    filled: bool = True
    counted: bool = True  # among the cells that can be filled


class Grid(NamedTuple):
    """A table as text."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str


def show(experiment: Experiment, style: str = "text") -> str:
    """All tables, the hyperparameters, the origin of the figures, and the number of filled cells."""
    grids, filled, total = [], 0, 0
    for table in experiment.tables:
        cells = [[cell_of(experiment, row, name) for name in table.figures] for row in table.rows]
        filled += sum(cell.filled for row in cells for cell in row)
        total += sum(cell.counted for row in cells for cell in row)
        grids.append(grid(experiment, table, cells))
    parts = [*map(FORMATS[style], [*grids, hyperparameters(experiment)]), LEGEND, *origins(experiment.results)]
    return "\n\n".join([experiment.title, *parts, f"filled {filled}/{total}"])


def grid(experiment: Experiment, table: Table, cells: list[list[Cell]]) -> Grid:
    """Labels and facts, then each of our figures, followed by the published one."""
    labels = ["model"] if any(row.label for row in table.rows) else []
    headings = [*labels, *table.facts]
    rows = [
        [row.label] * len(labels) + [write_fact(experiment.fact(row.run, name)) for name in table.facts.values()]
        for row in table.rows
    ]
    for name, ours in zip(table.figures, zip(*cells, strict=True), strict=True):
        columns = {experiment.paper.figure(name).heading: [cell.text for cell in ours]}
        if any(name in row.published for row in table.rows):
            columns[experiment.published] = [row.published.get(name, "") for row in table.rows]
        headings += columns
        rows = [[*row, *more] for row, *more in zip(rows, *columns.values(), strict=True)]
    return Grid(table.title, headings, rows, table.note)


def cell_of(experiment: Experiment, row: Row, name: str) -> Cell:
    """A cell; it is empty, and not counted, if only a printed figure is shown or the figure does not apply."""
    config, figure = experiment.configs.get(row.run), experiment.paper.figure(name)
    there = not row.published if config is None else figure.applies(config)
    return figure_cell(experiment, row.run, name) if there else Cell("", filled=False, counted=False)


def figure_cell(experiment: Experiment, run: str, name: str) -> Cell:
    """A figure of a run: mean, standard deviation and number of seeds; a median has its quartiles instead."""
    values, current = seed_values(experiment, run, name)
    if not values:
        return Cell(MISSING, False)
    write = experiment.paper.figure(name).write
    text = write(mean(values))
    quartiles = [seed_values(experiment, run, f"{name}_{part}")[0] for part in (25, 75)]
    if all(quartiles):
        text += f" ({'/'.join(write(mean(part)) for part in quartiles)})"
    elif len(values) > 1 and stdev(values) > 0:
        text += f" ± {write(stdev(values))} ({len(values)})"
    return Cell(text if current else text + STALE, current)


def seed_values(experiment: Experiment, run: str, name: str) -> tuple[list[float], bool]:
    """A figure by seed, from results of the current configuration if there are any, and whether there are."""
    config = experiment.configs.get(run)
    known = [(result, experiment.paper.value(result, name)) for result in experiment.results if result.run == run]
    current = [value for result, value in known if value is not None and config is not None and result.is_of(config)]
    return current or [value for _, value in known if value is not None], bool(current)


def hyperparameters(experiment: Experiment) -> Grid:
    """The appendix: the options in every TOML file; those that all share are in the note."""
    runs = {run: flat(experiment.written(run)) for run in experiment.runs()}
    known = dict.fromkeys(key for run in runs for key in flat(to_tables(experiment.configs[run])))
    keys = [key for key in known if any(key in run for run in runs.values())]
    varied = [key for key in keys if len({run.get(key) for run in runs.values()}) > 1]
    rows = [[name, *(write_fact(run[key]) if key in run else "" for key in varied)] for name, run in runs.items()]
    shared = {key: run[key] for run in runs.values() for key in keys if key not in varied}
    note = "All: " + ", ".join(f"{key} = {write_fact(value)}" for key, value in shared.items()) + "." if shared else ""
    short = [key.split(".")[-1] for key in varied]
    headings = [name if short.count(name) == 1 else key for name, key in zip(short, varied, strict=True)]
    note = f"{note} Other options have their defaults.".strip()
    return Grid("Hyperparameters", ["run", *headings], rows, note)


def origins(results: Sequence[Result]) -> list[str]:
    """The machines and the versions of the source that the figures come from."""
    if not results:
        return []
    devices = sorted({f"{r.hardware['device']}, torch {r.hardware['torch']}" for r in results})
    return [f"Measured on {'; '.join(devices)}. Source: {', '.join(sorted({r.source for r in results}))}."]


def as_text(grid: Grid) -> str:
    """Aligned columns."""
    widths = [max(map(len, cells)) for cells in zip(grid.headings, *grid.rows, strict=True)]
    lines = [grid.headings, ["-" * width for width in widths], *grid.rows]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([grid.title, *drawn, *filter(None, [grid.note])])


def as_markdown(grid: Grid) -> str:
    lines = [grid.headings, ["---"] * len(grid.headings), *grid.rows]
    drawn = "\n".join(f"| {' | '.join(cell.replace('|', BAR) for cell in line)} |" for line in lines)
    return "\n\n".join([f"### {grid.title}", drawn, *filter(None, [grid.note])])


FORMATS: dict[str, Callable[[Grid], str]] = {"text": as_text, "markdown": as_markdown}
