"""A comparison plot of models: perplexity by word frequency and by position in the sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trellis.report.curves import LARGEST, Scale, log_ticks
from trellis.report.format import compact, percent, perplexity, text
from trellis.report.markup import SVG, Markup, element, picture
from trellis.storage import write_text

if TYPE_CHECKING:
    from trellis.tasks.bands import Band
    from trellis.tasks.compare import Row

WIDTH, PANEL, LEFT, RIGHT = 960, 330, 48, 700  # pixels
TOP, BOTTOM, LEGEND = 50, 260, 22  # pixels within a panel, and between names
MARGIN = 1.05  # factor above and below the values
LONGEST_NAME = 28  # characters
# distinct with normal and with colour-blind vision (protan, deutan, tritan): CIELAB distances of at least 20
COLOURS = ("#1c5d8c", "#c2542d", "#2b2430", "#d9a520", "#8cc0e0", "#808080", "#6b1f1f")
PANELS = {"by_frequency": "by training count of the word", "by_position": "by preceding words in the sentence"}
STYLE = """
svg { background: #fdfcfa; font: 12px system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
text { fill: #6a6f77; } .title { fill: #1f2328; font-size: 15px; } .share { font-size: 10px; }
line { stroke: #e4e1da; } polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
"""


def write_comparison(path: Path, rows: Sequence[Row]) -> None:
    """Write the plot as a self-contained SVG file."""
    write_text(path, draw_comparison(rows))


def draw_comparison(rows: Sequence[Row]) -> Markup:
    """The perplexity of one model, or of several relative to the first, over two partitions of the tokens."""
    what = "Perplexity" if len(rows) == 1 else f"Perplexity relative to {short(rows[0].model)},"
    panels = [
        element("g", panel(f"{what} {how}", rows, name), transform=f"translate(0 {PANEL * number})")
        for number, (name, how) in enumerate(PANELS.items())
    ]
    size = f"-16 -8 {WIDTH} {max(PANEL * len(PANELS), TOP + LEGEND * (len(rows) + 1))}"
    return picture(STYLE, size, "Perplexity of models by word frequency and by position", *panels, legend(rows), **SVG)


def panel(title: str, rows: Sequence[Row], name: str) -> Markup:
    """One line per model over the same bands."""
    bands: list[list[Band]] = [getattr(row, name) for row in rows]
    base = [1.0 if len(rows) == 1 else band.perplexity for band in bands[0]]
    heights = [[band.perplexity / unit for band, unit in zip(one, base, strict=True)] for one in bands]
    values = [height for one in heights for height in one if 0 < height < LARGEST] or [1.0]
    x = Scale(-0.5, len(base) - 0.5, LEFT, RIGHT)
    y = Scale(math.log(min(values) / MARGIN), math.log(max(values) * MARGIN), BOTTOM, TOP)
    pairs = enumerate(zip(bands, heights, strict=True))
    drawn = [line(one, at, COLOURS[i % len(COLOURS)], x, y) for i, (one, at) in pairs]
    return element("g", element("text", title, x=0, y=16, class_="title"), *axes(bands[0], x, y), *drawn)


def axes(bands: Sequence[Band], x: Scale, y: Scale) -> list[Markup]:
    """The axes: perplexity, and the bands with their share of the tokens."""
    total, parts = sum(band.tokens for band in bands), []
    for tick in log_ticks(math.exp(y.low), math.exp(y.high)):
        height = y(math.log(tick))
        parts.append(element("line", x1=LEFT, x2=RIGHT, y1=height, y2=height))
        parts.append(element("text", compact(tick), x=LEFT - 10, y=height + 4, text_anchor="end"))
    for place, band in enumerate(bands):
        share = percent(band.tokens / total)
        parts.append(element("text", text(band.name), x=x(place), y=BOTTOM + 20, text_anchor="middle"))
        parts.append(element("text", share, x=x(place), y=BOTTOM + 34, text_anchor="middle", class_="share"))
    return parts


def line(bands: Sequence[Band], heights: Sequence[float], colour: str, x: Scale, y: Scale) -> Markup:
    """A model's points, connected if the bands are numeric ranges; infinite values are omitted."""
    points = [
        (band, x(place), y(math.log(height)))
        for place, (band, height) in enumerate(zip(bands, heights, strict=True))
        if 0 < height < LARGEST
    ]
    path = " ".join(f"{px:.1f},{py:.1f}" for band, px, py in points if band.name[0].isdigit())
    dots = [
        element("circle", element("title", f"{text(band.name)}: {perplexity(band.perplexity)}"), cx=px, cy=py, r=4)
        for band, px, py in points
    ]
    return element("g", element("polyline", points=path, stroke=colour), *dots, fill=colour)


def legend(rows: Sequence[Row]) -> Markup:
    """The models by colour, with their overall perplexity."""
    entries = []
    for number, row in enumerate(rows):
        height, label = TOP + LEGEND * number, f"{short(row.model)} {perplexity(row.perplexity)}"
        entries.append(element("circle", cx=RIGHT + 24, cy=height, r=4, fill=COLOURS[number % len(COLOURS)]))
        entries.append(element("text", label, x=RIGHT + 36, y=height + 4))
    return element("g", *entries, class_="legend")


def short(name: str) -> str:
    """A path, with its beginning cut off if it is long."""
    shown = text(name)
    return shown if len(shown) <= LONGEST_NAME else "…" + shown[-LONGEST_NAME + 1 :]
