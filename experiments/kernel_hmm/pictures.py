"""Line plots with logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.plots import COLOURS, STYLE
from trellis.report.curves import BOTTOM, HEIGHT, LABEL_GAP, LEFT, RIGHT, TOP, WIDTH, Scale, spread
from trellis.report.format import compact
from trellis.report.markup import Markup, element


class Series(NamedTuple):
    name: str
    points: Mapping[int, float]  # x -> a positive figure
    dashed: bool = False


def draw(title: str, across: str, series: Sequence[Series]) -> str:
    """Plot figures over x, both on logarithmic axes; names are at the right ends of the lines."""
    xs = sorted({x for line in series for x in line.points})
    values = [value for line in series for value in line.points.values() if value > 0]
    x = Scale(math.log(xs[0]), math.log(xs[-1]), LEFT + 20, RIGHT - 60)
    y = Scale(math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1, BOTTOM, TOP)
    ends = sorted(range(len(series)), key=lambda i: y(math.log10(end(series[i]))))
    heights = dict(zip(ends, spread([y(math.log10(end(series[i]))) for i in ends], LABEL_GAP), strict=True))
    ticks = range(math.ceil(y.low), math.floor(y.high) + 1)
    return str(
        element(
            "svg",
            element("style", Markup(STYLE)),
            element("text", title, x=LEFT, y=16, class_="title"),
            element("text", across, x=RIGHT, y=BOTTOM + 42, text_anchor="end"),
            *(element("line", x1=LEFT, x2=RIGHT - 60, y1=y(t), y2=y(t), class_="grid") for t in ticks),
            *(element("text", f"1e{t}", x=LEFT - 8, y=y(t) + 4, text_anchor="end") for t in ticks),
            *(element("text", compact(v), x=x(math.log(v)), y=BOTTOM + 20, text_anchor="middle") for v in xs),
            *(line(one, COLOURS[i % len(COLOURS)], x, y, heights[i]) for i, one in enumerate(series)),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
        )
    )


def end(series: Series) -> float:
    """The last positive figure."""
    return [value for _, value in sorted(series.points.items()) if value > 0][-1]


def line(series: Series, colour: str, x: Scale, y: Scale, height: float) -> Markup:
    """One line and its name."""
    places = [(x(math.log(n)), y(math.log10(value))) for n, value in sorted(series.points.items()) if value > 0]
    joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    kind = {"class": "published"} if series.dashed else {}
    return element(
        "g",
        element("polyline", points=joined),
        element("text", series.name, x=RIGHT - 52, y=height + 4, style=f"fill:{colour};stroke:none"),
        stroke=colour,
        **kind,
    )
