"""Training curves as SVG: perplexity (log axis) over tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trellis.report.format import compact, perplexity, text, whole
from trellis.report.markup import Markup, element, join

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
    """The curves `train` and `valid` of a metrics.jsonl: finite points only; a curve without points is left out."""
    lines = list(_json_lines(path)) if path.exists() else []
    curves = {name: list(_points(lines, f"{name}_ppl")) for name in ("train", "valid")}
    return {name: points for name, points in curves.items() if points}


def _json_lines(path: Path) -> Iterator[dict[str, float | str | None]]:
    """Every complete line; the last one may be torn where a run was killed."""
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
    """A line, its lowest point ringed and its end dotted."""
    kept = points[:: math.ceil(len(points) / MOST_POINTS)]
    path = [(x(tokens), y(math.log(value))) for tokens, value in [*kept, points[-1]]]
    marks = {"lowest": min(points, key=lambda point: point[1]), "end": points[-1]}
    return element(
        "g",
        element("polyline", points=" ".join(f"{px:.1f},{py:.1f}" for px, py in path)),
        *(
            element(
                "circle",
                element("title", f"{name}: {perplexity(value)} after {whole(tokens)} tokens"),
                cx=x(tokens),
                cy=y(math.log(value)),
                r=4,
                class_=mark,
            )
            for mark, (tokens, value) in marks.items()
        ),
        class_=name,
    )


def _axes(x: Scale, y: Scale) -> Markup:
    """Grid, ticks and titles."""
    across = [
        element("line", x1=LEFT, x2=RIGHT, y1=y(math.log(tick)), y2=y(math.log(tick)), class_="grid")
        + element("text", compact(tick), x=LEFT - 10, y=y(math.log(tick)) + 4, text_anchor="end")
        for tick in log_ticks(math.exp(y.low), math.exp(y.high))
    ]
    along = [
        element("line", x1=x(tick), x2=x(tick), y1=BOTTOM, y2=BOTTOM + 5, class_="axis")
        + element("text", compact(tick), x=x(tick), y=BOTTOM + 20, text_anchor="middle")
        for tick in linear_ticks(x.low, x.high)
    ]
    titles = [
        element("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis"),
        element("text", "training tokens", x=RIGHT, y=BOTTOM + 42, text_anchor="end", class_="title"),
        element("text", "perplexity, log scale", x=0, y=12, class_="title"),
    ]
    return element("g", join(*map(Markup, across + along)), *titles, class_="axes")


def _label_column(labels: list[Label]) -> list[Markup]:
    """Labels right of the picture, moved apart where they would overlap."""
    ordered = sorted(labels, key=lambda label: label.y)
    heights = spread([label.y for label in ordered], LABEL_GAP)
    return [
        element(
            "text",
            text(label.name) + " ",
            element("tspan", perplexity(label.value), class_="value"),
            x=RIGHT + 12,
            y=height + 4,
            class_=f"label {label.kind}",
        )
        for label, height in zip(ordered, heights, strict=True)
    ]


def spread(heights: list[float], gap: float) -> list[float]:
    """The same ascending heights moved apart to at least `gap`: touching neighbours share one centred stack."""
    stacks: list[list[float]] = []  # [centre, count]
    for height in heights:
        stacks.append([height, 1])
        while len(stacks) > 1 and stacks[-1][0] - stacks[-2][0] < gap * (stacks[-1][1] + stacks[-2][1]) / 2:
            (centre, count), (above, others) = stacks.pop(), stacks.pop()
            stacks.append([(centre * count + above * others) / (count + others), count + others])
    return [centre + gap * (i - (count - 1) / 2) for centre, count in stacks for i in range(int(count))]


def linear_ticks(low: float, high: float) -> list[float]:
    """Round numbers, about six, between low and high."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Values 1, 2, 5 of each decade, or fewer where the range is wide, or evenly spaced ones where it is narrow."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    for leading in ((1, 2, 5), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in leading if low <= digit * 10.0**power <= high]
        if 3 <= len(ticks) <= MOST_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / MOST_TICKS)] if len(ticks) > MOST_TICKS else linear_ticks(low, high)
