"""Training curves as SVG: perplexity (log axis) over epochs or steps, with the elapsed time."""

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trellis.report.format import compact, duration, perplexity, text, whole
from trellis.report.markup import Markup, element, join

WIDTHS = {"broad": 960, "narrow": 420}  # pixels: for a screen, and for a phone
HEIGHT, LEFT, TOP, BOTTOM = 400, 48, 30, 340  # pixels
LABELS = 130  # pixels right of the plot
LABEL_GAP = 18  # pixels between two labels
MOST_POINTS, MOST_TICKS = 600, 9
TICK_GAP = 50  # pixels between two ticks of the horizontal axis, at least
LARGEST = 1e300


class Scale(NamedTuple):
    """Maps low..high to the pixels start..stop."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


class Label(NamedTuple):
    """A name and a value at the right end of a line."""

    y: float
    name: str
    value: float
    kind: str


class Point(NamedTuple):
    """A perplexity measured after `step` steps."""

    step: float
    perplexity: float


class Moment(NamedTuple):
    """The epochs completed and the seconds elapsed after `step` steps."""

    step: float
    epoch: float
    seconds: float


class Curves(NamedTuple):
    """The curves `train` and `valid` of a run; empty ones are omitted."""

    points: dict[str, list[Point]]
    moments: list[Moment]

    @property
    def last(self) -> float:
        return max(point.step for points in self.points.values() for point in points) or 1.0

    @property
    def steps_per_epoch(self) -> float | None:
        """The mean number of steps per epoch; None if fewer than two epochs were completed."""
        done = max((moment.epoch for moment in self.moments), default=0.0)
        return next((one.step / done for one in self.moments if one.epoch == done), 0.0) if done >= 2 else None

    def seconds_at(self, step: float) -> float:
        """Elapsed seconds, interpolated between the logged moments."""
        known = [Moment(0.0, 0.0, 0.0), *self.moments]
        place = min(max(bisect_left([one.step for one in known], step), 1), len(known) - 1)
        before, after = known[place - 1], known[place]
        share = (step - before.step) / ((after.step - before.step) or 1.0)
        return before.seconds + share * (after.seconds - before.seconds)


def read_curves(path: Path) -> Curves:
    """The curves of a metrics.jsonl."""
    return curves_of(list(json_lines(path)) if path.exists() else [])


def curves_of(lines: list[dict[str, float | str | None]]) -> Curves:
    """The curves of logged metrics: finite points only."""
    curves = {name: list(_points(lines, f"{name}_ppl")) for name in ("train", "valid")}
    moments = [Moment(*(_number(line, name) for name in Moment._fields)) for line in lines]
    whole_ones = [moment for moment in moments if all(map(math.isfinite, moment))]
    return Curves({name: points for name, points in curves.items() if points}, whole_ones)


def json_lines(path: Path) -> Iterator[dict[str, float | str | None]]:
    """Every complete line; the last may be truncated if a run was killed."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield dict(json.loads(line))
        except (ValueError, TypeError):
            continue


def _number(line: dict[str, float | str | None], name: str) -> float:
    return math.nan if (found := line.get(name)) is None else float(found)


def _points(lines: list[dict[str, float | str | None]], name: str) -> Iterator[Point]:
    for line in lines:
        step, value = _number(line, "step"), _number(line, name)
        if math.isfinite(step) and 0 < value < LARGEST:
            yield Point(step, value)


def draw_curves(curves: Curves, baselines: Mapping[str, float]) -> Markup:
    """Two versions of the picture, for a screen and for a phone. The style sheet shows one of them."""
    return join(*(_draw(curves, baselines, width, f"curves {name}") for name, width in WIDTHS.items()))


def _draw(curves: Curves, baselines: Mapping[str, float], width: int, kind: str) -> Markup:
    """The curves with axes, end-point values and each baseline's perplexity as a dashed line."""
    levels = {name: value for name, value in baselines.items() if 0 < value < LARGEST}
    values = [point.perplexity for points in curves.points.values() for point in points] + list(levels.values())
    x = Scale(0.0, curves.last, LEFT, width - LABELS)
    y = Scale(math.log(min(values) / 1.08), math.log(max(values) * 1.08), BOTTOM, TOP)
    labels = [Label(y(math.log(value)), name, value, "baseline") for name, value in levels.items()]
    ends = {name: points[-1].perplexity for name, points in curves.points.items()}
    labels += [Label(y(math.log(value)), name, value, name) for name, value in ends.items()]
    return element(
        "svg",
        _axes(curves, x, y),
        *(element("line", x1=LEFT, x2=x.stop, y1=at.y, y2=at.y, class_="baseline") for at in labels[: len(levels)]),
        *(_curve(name, points, x, y) for name, points in curves.points.items()),
        *_label_column(labels, x.stop + 12),
        viewBox=f"0 0 {width} {HEIGHT}",
        class_=kind,
        role="img",
        aria_label="Perplexity during training",
    )


def _curve(name: str, points: list[Point], x: Scale, y: Scale) -> Markup:
    """A line with a ring at its lowest point and a dot at its end."""
    kept = points[:: math.ceil(len(points) / MOST_POINTS)]
    path = " ".join(f"{x(step):.1f},{y(math.log(value)):.1f}" for step, value in [*kept, points[-1]])
    marks = []
    for mark, (step, value) in {"lowest": min(points, key=lambda point: point.perplexity), "end": points[-1]}.items():
        title = element("title", f"{name}: {perplexity(value)} after {whole(step)} steps")
        marks.append(element("circle", title, cx=x(step), cy=y(math.log(value)), r=4, class_=mark))
    return element("g", element("polyline", points=path), *marks, class_=name)


def _axes(curves: Curves, x: Scale, y: Scale) -> Markup:
    """Grid, ticks and titles; below each tick of the horizontal axis, the elapsed time."""
    unit = curves.steps_per_epoch
    parts = [element("text", "perplexity, log scale", x=0, y=12, class_="title")]
    for tick in log_ticks(math.exp(y.low), math.exp(y.high)):
        height = y(math.log(tick))
        parts.append(element("line", x1=LEFT, x2=x.stop, y1=height, y2=height, class_="grid"))
        parts.append(element("text", compact(tick), x=LEFT - 10, y=height + 4, text_anchor="end"))
    parts.append(element("line", x1=LEFT, x2=x.stop, y1=BOTTOM, y2=BOTTOM, class_="axis"))
    for tick in _whole_ticks(curves.last / (unit or 1.0), x.stop - x.start):
        step = tick * (unit or 1.0)
        parts.append(element("line", x1=x(step), x2=x(step), y1=BOTTOM, y2=BOTTOM + 5, class_="axis"))
        below = [compact(tick)]
        below += [duration(curves.seconds_at(step), curves.moments[-1].seconds)] if curves.moments else []
        for row, label in enumerate(below):
            parts.append(element("text", label, x=x(step), y=BOTTOM + 20 + 18 * row, text_anchor="middle"))
    names = ["step" if unit is None else "epoch", *["elapsed time"] * bool(curves.moments)]
    for row, name in enumerate(names):
        parts.append(element("text", name, x=x.stop + 36, y=BOTTOM + 20 + 18 * row, class_="title"))
    return element("g", *parts, class_="axes")


def _whole_ticks(high: float, pixels: float) -> list[float]:
    """Round whole numbers from zero on, as many as fit."""
    ticks = [tick for tick in linear_ticks(0.0, max(high, 1.0)) if tick == int(tick) and tick <= high * (1 + 1e-9)]
    return ticks[:: max(1, math.ceil(TICK_GAP * len(ticks) / pixels))]


def _label_column(labels: list[Label], left: float) -> list[Markup]:
    """Labels to the right of the plot, moved apart if they would overlap."""
    ordered = sorted(labels, key=lambda label: label.y)
    heights = spread([label.y for label in ordered], LABEL_GAP)
    column = []
    for label, height in zip(ordered, heights, strict=True):
        shown = text(label.name) + " ", element("tspan", perplexity(label.value), class_="value")
        column.append(element("text", *shown, x=left, y=height + 4, class_=f"label {label.kind}"))
    return column


def spread(heights: list[float], gap: float) -> list[float]:
    """Move ascending heights at least `gap` apart; overlapping ones form a centred stack."""
    stacks: list[list[float]] = []  # [centre, count]
    for height in heights:
        stacks.append([height, 1])
        while len(stacks) > 1 and stacks[-1][0] - stacks[-2][0] < gap * (stacks[-1][1] + stacks[-2][1]) / 2:
            (centre, count), (above, others) = stacks.pop(), stacks.pop()
            stacks.append([(centre * count + above * others) / (count + others), count + others])
    return [centre + gap * (i - (count - 1) / 2) for centre, count in stacks for i in range(int(count))]


def linear_ticks(low: float, high: float) -> list[float]:
    """About six round numbers between low and high."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Values 1, 2, 5 of each decade, fewer if the range is wide, or evenly spaced ones if it is narrow."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    for leading in ((1, 2, 5), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in leading if low <= digit * 10.0**power <= high]
        if 3 <= len(ticks) <= MOST_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / MOST_TICKS)] if len(ticks) > MOST_TICKS else linear_ticks(low, high)
