"""Plots of the figures of a table, by matplotlib: one line for each value of a fact; published figures have hollow
markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.experiment import Experiment, Plot, Table
from experiments.facts import write_fact
from experiments.tables import seed_values
from trellis.errors import TrellisError
from trellis.report.format import percent
from trellis.storage import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = "svg", "pdf"
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#444444",
)  # distinct to colour-blind readers
MARKERS = "os^Dv<>"
DODGE = 0.14  # distance of two lines at the same place, where x is a pair
MOST_TICKS = 12  # where there are more places, they have no ticks of their own, nor markers
LOGARITHMIC = 4.0  # a few numbers whose ratio is at least this have a logarithmic axis
OURS = "ours"  # the only line of a plot
STYLE: Any = {
    "font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6, "axes.axisbelow": True, "lines.linewidth": 1.3, "lines.markersize": 4.5,
    "legend.frameon": False, "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "trellis",
}  # fmt: skip
SIZE = 5.5, 3.0  # inches: the width of a page of text


class Point(NamedTuple):
    """A figure at x, and the ends of its error bar; without one, both are the figure itself."""

    x: Any
    value: float
    low: float
    high: float


class Line(NamedTuple):
    """One line of a plot; lines of a group share a colour. Published figures are hollow and dashed."""

    name: str
    points: Sequence[Point]
    group: str
    hollow: bool = False


class Look(NamedTuple):
    """The names of the axes, with units, and the title of the file."""

    title: str
    x: str
    y: str
    log_y: bool = False
    percent: bool = False
    pair: str = ""  # what the first of a pair of x is called


def line(name: str, points: Mapping[Any, float], group: str = "", hollow: bool = False) -> Line:
    """A line without error bars."""
    return Line(name, [Point(x, y, y, y) for x, y in sorted(points.items())], group or name, hollow)


def write_plots(experiment: Experiment, folder: Path | None = None, kind: str = "svg") -> list[Path]:
    """A plot of every table that asks for one and has a figure to show, and those that the paper declares."""
    drawn = {
        table.name: (look_of(experiment, table, table.plot), lines_of(experiment, table, table.plot))
        for table in experiment.tables
        if table.plot
    }
    drawn |= {name: picture() for name, picture in experiment.paper.pictures.items()}
    written = []
    for name, (look, lines) in drawn.items():
        if lines:
            written.append((folder or experiment.folder / "plots") / f"{name}.{kind}")
            save(draw(lines, look), written[-1], look.title)
    return written


def look_of(experiment: Experiment, table: Table, plot: Plot) -> Look:
    first = experiment.paper.figure(figures(plot)[0])
    labels = plot.x_label or plot.x.split(".")[-1], plot.y_label or first.heading
    return Look(table.title, *labels, plot.log_y, first.write is percent, plot.x.split(", ")[0])


def lines_of(experiment: Experiment, table: Table, plot: Plot) -> list[Line]:
    """Our figures and the published ones, for every value of the fact `plot.lines`."""
    ours: dict[str, list[Point]] = {}
    theirs: dict[str, list[Point]] = {}
    for row in table.rows:
        if plot.x in experiment.paper.plots:
            ours[row.label] = curve(experiment, row.run, plot)
            continue
        for y in figures(plot) if row.run in experiment.configs else ():
            fact = write_fact(experiment.fact(row.run, plot.lines)) if plot.lines else ""
            name = plot.names.get(fact, fact) or (
                experiment.paper.figure(y).heading if len(figures(plot)) > 1 else OURS
            )
            x = experiment.fact(row.run, plot.x)
            ours.setdefault(name, []).extend(measured(experiment, row.run, x, y))
            theirs.setdefault(name, []).extend(Point(x, *[value] * 3) for value in numbers(row.published.get(y, "")))
    lines = [Line(name, sorted(points), name) for name, points in ours.items()]
    for name, points in theirs.items():
        shown = experiment.published if name == OURS else f"{name}, {experiment.published}"
        lines.append(Line(shown, sorted(points), name, True))
    return [one for one in lines if one.points]


def measured(experiment: Experiment, run: str, x: Any, y: str) -> list[Point]:
    """The mean over seeds with one standard deviation; a median has its quartiles instead."""
    values, current = seed_values(experiment, run, y)
    if not current:
        return []
    quartiles = [seed_values(experiment, run, f"{y}_{part}")[0] for part in (25, 75)]
    if all(quartiles):
        return [Point(x, mean(values), *map(mean, quartiles))]
    return [spread(x, values)]


def curve(experiment: Experiment, run: str, plot: Plot) -> list[Point]:
    """The points of every result of a run, by x."""
    found: dict[Any, list[float]] = {}
    for result in experiment.results:
        for x, value in experiment.paper.plots[plot.x](result) if result.run == run else ():
            found.setdefault(x, []).append(value)
    return [spread(x, values) for x, values in found.items()]


def spread(x: Any, values: Sequence[float]) -> Point:
    """The mean, and one standard deviation on either side."""
    deviation = stdev(values) if len(values) > 1 else 0.0
    return Point(x, mean(values), mean(values) - deviation, mean(values) + deviation)


def figures(plot: Plot) -> list[str]:
    return [plot.y] if isinstance(plot.y, str) else plot.y


def numbers(printed: str) -> list[float]:
    """The first number in a printed figure."""
    return [float(found) for found in re.findall(r"\d+(?:\.\d+)?", printed)[:1]]


def draw(lines: Sequence[Line], look: Look) -> Figure:
    """The lines with their error bars, named axes and a legend."""
    if find_spec("matplotlib") is None:
        raise TrellisError("Plots need matplotlib; install it with: pip install 'trellis-hmm[plots]'.")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(SIZE, layout="constrained")
        axes = figure.add_subplot(xlabel=look.x, ylabel=look.y, yscale="log" if look.log_y else "linear")
        places = across(axes, {point.x for one in lines for point in one.points}, look.pair)
        groups = list(dict.fromkeys(one.group for one in lines))
        for one in lines:
            number = groups.index(one.group)
            shift = DODGE * (number - (len(groups) - 1) / 2) if isinstance(one.points[0].x, tuple) else 0.0
            draw_line(axes, one, places, shift, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])
        name_ticks(axes, look)
        if len(lines) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure


def name_ticks(axes: Axes, look: Look) -> None:
    """Plain numbers on the vertical axis; powers of ten where it is logarithmic and spans two decades or more."""
    low, high = axes.get_ylim()
    if look.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    elif not look.log_y:
        axes.ticklabel_format(axis="y", useMathText=True, scilimits=(-3, 5))
    elif high < 100 * low:
        axes.yaxis.set_ticks([digit * 10.0**n for n in range(-9, 9) for digit in (1, 2, 5)])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        axes.set_ylim(low, high)


def across(axes: Axes, values: Iterable[Any], pair: str) -> dict[Any, float]:
    """The place of every x: itself if it is a number, else its rank."""
    ordered = sorted(values)
    if isinstance(ordered[0], tuple):
        axes.set_xticks(range(len(ordered)), pair_labels(ordered, pair))
        return {x: float(i) for i, x in enumerate(ordered)}
    if len(ordered) <= MOST_TICKS:
        if ordered[0] > 0 and ordered[-1] / ordered[0] >= LOGARITHMIC:
            axes.set_xscale("log")
        axes.set_xticks(ordered, [write_fact(x) for x in ordered])
        axes.minorticks_off()
    return {x: float(x) for x in ordered}


def pair_labels(pairs: Sequence[tuple[Any, Any]], name: str) -> list[str]:
    """The second of each pair; the first below the middle one of those that share it."""
    labels = []
    for first, second in pairs:
        alike = [pair for pair in pairs if pair[0] == first]
        below = f"\n{name} = {first}" if (first, second) == alike[len(alike) // 2] else ""
        labels.append(f"{write_fact(second)}{below}")
    return labels


def draw_line(axes: Axes, one: Line, places: Mapping[Any, float], shift: float, colour: str, marker: str) -> None:
    """Points joined by a line, but not from one pair to one with another first member, with their error bars."""
    pairs = [point.x[0] if isinstance(point.x, tuple) else None for point in one.points]
    look: Any = {"linestyle": "--", "markerfacecolor": "white"} if one.hollow else {"linestyle": "-"}
    label = one.name
    for group in dict.fromkeys(pairs):
        points = [point for point, own in zip(one.points, pairs, strict=True) if own == group]
        x, y = [places[point.x] + shift for point in points], [point.value for point in points]
        ends = [[point.value - point.low for point in points], [point.high - point.value for point in points]]
        axes.errorbar(
            x, y, ends if any(map(any, ends)) else None, label=label, color=colour, capsize=2.0, elinewidth=0.8,
            marker=marker if len(places) <= MOST_TICKS else "", **look,
        )  # fmt: skip
        label = "_"  # in the legend once


def save(figure: Figure, path: Path, title: str) -> None:
    """Write an SVG or PDF file, the same bytes each time."""
    import matplotlib

    date = {"svg": "Date", "pdf": "CreationDate"}[path.suffix[1:]]
    buffer = BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=path.suffix[1:], metadata={"Title": title, date: None})
    with atomic_write(path) as file:
        file.write(buffer.getvalue())
