"""Plots of the figures of a table as SVG: one line for each value of a fact; published figures have hollow markers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from experiments.experiment import Experiment, Plot, Table
from experiments.facts import write_fact
from experiments.paper import Paper
from experiments.tables import seed_values
from trellis.report.curves import BOTTOM, HEIGHT, LABEL_GAP, LEFT, RIGHT, TOP, WIDTH, Scale, linear_ticks, spread
from trellis.report.markup import Markup, element
from trellis.storage import write_text

COLOURS = "#1c5d8c", "#c2542d", "#4f7f3a", "#7a4b94", "#9a7b1c", "#555b63"
STYLE = """
svg { background: #fff; font: 12px system-ui, sans-serif; } text { fill: #6a6f77; } .title { font-size: 14px; }
polyline { fill: none; stroke-width: 2; } circle { stroke-width: 2; } .grid { stroke: #e4e1da; }
.published polyline { stroke-dasharray: 3 5; } .published circle { fill: #fff; }
"""
MARGIN = 0.08  # margin above and below, as a fraction of the range


class Line(NamedTuple):
    """Points (value of the fact x, figure); published ones have hollow markers."""

    name: str
    colour: str
    points: list[tuple[Any, float]]
    published: bool


def write_plots(experiment: Experiment, folder: Path | None = None) -> list[Path]:
    """Write a plot for every table that declares one and has results."""
    written = []
    for table in experiment.tables:
        lines = lines_of(experiment, table, table.plot) if table.plot else []
        if table.plot and lines:
            path = (folder or experiment.folder / "plots") / f"{table.name}.svg"
            write_text(path, f"{draw(experiment.paper, table, table.plot, lines)}\n")
            written.append(path)
    return written


def lines_of(experiment: Experiment, table: Table, plot: Plot) -> list[Line]:
    """Our figures and the published ones, for every value of the fact `plot.lines`."""
    paper = experiment.paper
    ours: dict[str, list[tuple[Any, float]]] = {}
    theirs: dict[str, list[tuple[Any, float]]] = {}
    for row in table.rows:
        if plot.x in paper.plots:
            first = [result for result in experiment.results if result.run == row.run][:1]
            ours[row.label] = [point for result in first for point in paper.plots[plot.x](result)]
            continue
        for y in figures(plot) if row.run in experiment.configs else ():
            name = write_fact(experiment.fact(row.run, plot.lines)) if plot.lines else paper.figure(y).heading
            x = experiment.fact(row.run, plot.x)
            values, current = seed_values(experiment, row.run, y)
            ours.setdefault(name, []).extend([(x, mean(values))] if current else [])
            theirs.setdefault(name, []).extend((x, value) for value in numbers(row.published.get(y, "")))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(ours)}
    lines = [Line(name, colours[name], sorted(points), False) for name, points in ours.items()]
    lines += [Line(f"{name}, {experiment.published}", colours[name], sorted(p), True) for name, p in theirs.items()]
    return [line for line in lines if line.points]


def figures(plot: Plot) -> list[str]:
    return [plot.y] if isinstance(plot.y, str) else plot.y


def numbers(printed: str) -> list[float]:
    """The first number in a printed figure."""
    return [float(found) for found in re.findall(r"\d+(?:\.\d+)?", printed)[:1]]


def draw(paper: Paper, table: Table, plot: Plot, lines: list[Line]) -> Markup:
    """The plot; values of x are at equal distances."""
    places = sorted({x for line in lines for x, _ in line.points})
    step = (RIGHT - LEFT) / len(places)
    across = {x: LEFT + (i + 0.5) * step for i, x in enumerate(places)}
    values = [value for line in lines for _, value in line.points]
    room = MARGIN * (max(values) - min(values)) or MARGIN * abs(values[0]) or 1.0
    y = Scale(min(values) - room, max(values) + room, BOTTOM, TOP)
    write = paper.figure(figures(plot)[0]).write
    grid = [
        element("line", x1=LEFT, x2=RIGHT, y1=y(tick), y2=y(tick), class_="grid")
        + element("text", write(tick), x=LEFT - 8, y=y(tick) + 4, text_anchor="end")
        for tick in linear_ticks(y.low, y.high)
    ]
    marks = [element("text", write_fact(x), x=at, y=BOTTOM + 20, text_anchor="middle") for x, at in across.items()]
    return element(
        "svg",
        element("style", Markup(STYLE)),
        element("text", table.title, x=LEFT, y=16, class_="title"),
        element("text", plot.x.split(".")[-1], x=RIGHT, y=BOTTOM + 42, text_anchor="end"),
        element("text", "" if isinstance(plot.y, list) else paper.figure(plot.y).heading, x=LEFT, y=BOTTOM + 42),
        *map(Markup, grid),
        *marks,
        *(draw_line(line, across, y, write) for line in lines),
        *labels(lines, y),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
    )


def draw_line(line: Line, across: dict[Any, float], y: Scale, write: Any) -> Markup:
    """A line with its points; the title of each point is its value."""
    joined = " ".join(f"{across[x]:.1f},{y(value):.1f}" for x, value in line.points)
    fill = {} if line.published else {"fill": line.colour}
    points = (
        element("circle", element("title", f"{line.name}: {write(value)}"), cx=across[x], cy=y(value), r=4, **fill)
        for x, value in line.points
    )
    kind = {"class": "published"} if line.published else {}
    return element("g", element("polyline", points=joined), *points, stroke=line.colour, **kind)


def labels(lines: list[Line], y: Scale) -> Iterable[Markup]:
    """The names of the lines, to the right of their last points, moved apart if they would overlap."""
    ordered = sorted(lines, key=lambda line: y(line.points[-1][1]))
    heights = spread([y(line.points[-1][1]) for line in ordered], LABEL_GAP)
    for line, height in zip(ordered, heights, strict=True):
        yield element("text", line.name, x=RIGHT + 8, y=height + 4, style=f"fill:{line.colour}")
