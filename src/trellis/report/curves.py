"""Training curves as SVG: perplexity (log axis) over tokens."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trellis.report.format import compact, perplexity, text, whole
from trellis.report.markup import Markup, element

WIDTH, HEIGHT = 960, 400
LEFT, RIGHT, TOP, BOTTOM = 48, 830, 30, 350
LABEL_GAP = 18  # pixels between two labels
MOST_POINTS, MOST_TICKS = 600, 9
LARGEST = 1e300

Point = tuple[float, float]  # tokens, perplexity


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


def read_curves(path: Path) -> dict[str, list[Point]]:
    """The curves `train` and `valid` of a metrics.jsonl: finite points only; empty curves are omitted."""
    lines = list(_json_lines(path)) if path.exists() else []
    curves = {name: list(_points(lines, f"{name}_ppl")) for name in ("train", "valid")}
    return {name: points for name, points in curves.items() if points}


def _json_lines(path: Path) -> Iterator[dict[str, float | str | None]]:
    """Every complete line; the last may be truncated if a run was killed."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield dict(json.loads(line))
        except (ValueError, TypeError):
            continue


def _points(lines: list[dict[str, float | str | None]], name: str) -> Iterator[Point]:
    for line in lines:
        tokens, value = (math.nan if (figure := line.get(key)) is None else float(figure) for key in ("tokens", name))
        if math.isfinite(tokens) and 0 < value < LARGEST:
            yield tokens, value


def draw_curves(curves: Mapping[str, list[Point]], baselines: Mapping[str, float]) -> Markup:
    """The curves with axes, end-point values and each baseline's perplexity as a dashed line."""
    levels = {name: value for name, value in baselines.items() if 0 < value < LARGEST}
    values = [value for points in curves.values() for _, value in points] + list(levels.values())
    x = Scale(0.0, max(tokens for points in curves.values() for tokens, _ in points) or 1.0, LEFT, RIGHT)
    y = Scale(math.log(min(values) / 1.08), math.log(max(values) * 1.08), BOTTOM, TOP)
    labels = [Label(y(math.log(value)), name, value, "baseline") for name, value in levels.items()]
    labels += [Label(y(math.log(points[-1][1])), name, points[-1][1], name) for name, points in curves.items()]
    return element(
        "svg",
        _axes(x, y),
        *(element("line", x1=LEFT, x2=RIGHT, y1=at.y, y2=at.y, class_="baseline") for at in labels[: len(levels)]),
        *(_curve(name, points, x, y) for name, points in curves.items()),
        *_label_column(labels),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="curves",
        role="img",
        aria_label="Perplexity over training tokens",
    )


def _curve(name: str, points: list[Point], x: Scale, y: Scale) -> Markup:
    """A line with a ring at its lowest point and a dot at its end."""
    kept = points[:: math.ceil(len(points) / MOST_POINTS)]
    path = " ".join(f"{x(tokens):.1f},{y(math.log(value)):.1f}" for tokens, value in [*kept, points[-1]])
    marks = []
    for mark, (tokens, value) in {"lowest": min(points, key=lambda point: point[1]), "end": points[-1]}.items():
        title = element("title", f"{name}: {perplexity(value)} after {whole(tokens)} tokens")
        marks.append(element("circle", title, cx=x(tokens), cy=y(math.log(value)), r=4, class_=mark))
    return element("g", element("polyline", points=path), *marks, class_=name)


def _axes(x: Scale, y: Scale) -> Markup:
    """Grid, ticks and titles."""
    parts = []
    for tick in log_ticks(math.exp(y.low), math.exp(y.high)):
        height = y(math.log(tick))
        parts.append(element("line", x1=LEFT, x2=RIGHT, y1=height, y2=height, class_="grid"))
        parts.append(element("text", compact(tick), x=LEFT - 10, y=height + 4, text_anchor="end"))
    for tick in linear_ticks(x.low, x.high):
        parts.append(element("line", x1=x(tick), x2=x(tick), y1=BOTTOM, y2=BOTTOM + 5, class_="axis"))
        parts.append(element("text", compact(tick), x=x(tick), y=BOTTOM + 20, text_anchor="middle"))
    parts.append(element("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis"))
    parts.append(element("text", "training tokens", x=RIGHT, y=BOTTOM + 42, text_anchor="end", class_="title"))
    parts.append(element("text", "perplexity, log scale", x=0, y=12, class_="title"))
    return element("g", *parts, class_="axes")


def _label_column(labels: list[Label]) -> list[Markup]:
    """Labels to the right of the plot, moved apart if they would overlap."""
    ordered = sorted(labels, key=lambda label: label.y)
    heights = spread([label.y for label in ordered], LABEL_GAP)
    column = []
    for label, height in zip(ordered, heights, strict=True):
        shown = text(label.name) + " ", element("tspan", perplexity(label.value), class_="value")
        column.append(element("text", *shown, x=RIGHT + 12, y=height + 4, class_=f"label {label.kind}"))
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
