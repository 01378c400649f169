"""The report sections of a linear dynamical system: its dynamics in words."""

from collections.abc import Sequence

from trellis.families.lds.model import LDS, Pair
from trellis.report.markup import Markup, element, picture, section

WIDTH, HEIGHT, MARGIN = 1100, 30, 16  # pixels: total width, height of a pair, margin
ARROW = 440, 660  # start and end of the arrows
BROADEST = 10.0  # maximum stroke width of an arrow
STYLE = """
.dynamics { background: #fff; font: 13px system-ui, sans-serif; } .dynamics text { fill: #2b2f36; }
.dynamics path { fill: none; stroke: #1c5d8c; stroke-linecap: round; opacity: .75; }
.dynamics .value { fill: #fff; font-size: 11px; } .dynamics .plate { fill: #1c5d8c; }
"""


def sections(model: LDS) -> list[Markup]:
    """The report sections of an LDS."""
    caption = "Singular vector pairs of the transition: words on the left lead to words on the right."
    return [section("Dynamics", caption, element("div", draw_dynamics(model.dynamics()), class_="wide"))]


def draw_dynamics(pairs: Sequence[Pair], **look: object) -> Markup:
    """One line per singular vector pair, with an arrow whose width shows the singular value."""
    largest = max((pair.value for pair in pairs), default=1.0)
    lines = [draw_pair(pair, MARGIN + HEIGHT * (i + 0.5), largest) for i, pair in enumerate(pairs)]
    size = f"0 0 {WIDTH} {2 * MARGIN + HEIGHT * len(pairs)}"
    return picture(STYLE, size, "Singular vector pairs of the transition", *lines, class_="dynamics", **look)


def draw_pair(pair: Pair, y: float, largest: float) -> Markup:
    (left, right), middle = ARROW, sum(ARROW) / 2
    broad = BROADEST * pair.value / largest
    return element(
        "g",
        element("text", " ".join(pair.before), x=left - 20, y=y + 4, text_anchor="end"),
        element("path", d=f"M{left} {y:.1f}H{right}m-8 -6l8 6l-8 6", stroke_width=max(broad, 1.0)),
        element("rect", x=middle - 18, y=y - 8, width=36, height=16, rx=8, class_="plate"),
        element("text", f"{pair.value:.2f}", x=middle, y=y + 4, text_anchor="middle", class_="value"),
        element("text", " ".join(pair.after), x=right + 20, y=y + 4),
    )
