"""A plot of a sentence's trellis: words across, states down, with state and transition posteriors."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trellis.errors import TrellisError
from trellis.report.format import probability, shortened, text, word
from trellis.report.markup import SVG, Markup, element, picture
from trellis.storage import write_text

COLUMN, ROW, RADIUS = 104, 34, 13  # pixels: column of a word, row of a state, radius at probability 1
LEFT, TOP, BOTTOM = 210, 54, 20
FAINTEST = 0.02  # smaller probabilities are not drawn
LONGEST_NAME, LONGEST_WORD = 26, 13
STYLE = """
.trellis { background: #fff; font: 13px system-ui, sans-serif; } .trellis text { fill: #2b2f36; }
.trellis .name { fill: #6a6f77; } .trellis .word { font-weight: 600; } .trellis .state { fill: #1c5d8c; }
.trellis .step { stroke: #1c5d8c; fill: none; } .trellis .row { stroke: #efede8; }
.trellis .best { stroke: #c2542d; stroke-width: 2; fill: none; }
"""


class Trellis(NamedTuple):
    """A sentence of T words over its n most relevant states; notebooks show it as a picture."""

    words: Sequence[str]
    names: Sequence[str]  # state labels
    posterior: np.ndarray  # [T, n]: p(z_t | x)
    steps: np.ndarray  # [T - 1, n, n]: p(z_t, z_t+1 | x)
    path: Sequence[int]  # the row of the Viterbi state at each word

    def __repr__(self) -> str:
        return f"<Trellis: {len(self.words)} words, {len(self.names)} states>"

    def _repr_svg_(self) -> str:
        return draw_trellis(self, **SVG)

    def save(self, path: str | Path) -> None:
        """Write the picture as an SVG file."""
        if Path(path).suffix != ".svg":
            raise TrellisError(f"Cannot write {path}: pictures are SVG; use a name that ends in .svg.")
        write_text(path, f"{self._repr_svg_()}\n")


def draw_trellis(trellis: Trellis, **look: object) -> Markup:
    """An SVG. Circles show state probabilities, line widths show transition probabilities, and rings mark the Viterbi
    path.

    `look` has attributes of the SVG element."""
    height, width = TOP + ROW * len(trellis.names) + BOTTOM, LEFT + COLUMN * len(trellis.words)
    rows = [element("line", x1=LEFT - 20, x2=width - 20, y1=_y(z), y2=_y(z), class_="row") for z in _rows(trellis)]
    names = [
        element("text", shortened(text(name), LONGEST_NAME), x=LEFT - 34, y=_y(z) + 4, text_anchor="end", class_="name")
        for z, name in enumerate(trellis.names)
    ]
    words = [
        element("text", word(token, LONGEST_WORD), x=_x(t), y=TOP - 26, text_anchor="middle", class_="word")
        for t, token in enumerate(trellis.words)
    ]
    parts = [*rows, *_steps(trellis.steps), _best(trellis.path), *_states(trellis), *names, *words]
    return picture(
        STYLE, f"0 0 {width} {height}", "The trellis of a sentence", *parts, class_="trellis", width=width, **look
    )


def _rows(trellis: Trellis) -> range:
    return range(len(trellis.names))


def _x(t: int) -> float:
    return LEFT + COLUMN * (t + 0.4)


def _y(z: int) -> float:
    return TOP + ROW * (z + 0.5)


def _steps(steps: np.ndarray) -> list[Markup]:
    """A curve for each sufficiently probable transition."""
    drawn = []
    for t, before, after in np.argwhere(steps > FAINTEST):
        middle, prob = (_x(t) + _x(t + 1)) / 2, float(steps[t, before, after])
        bend = f"C{middle:.1f} {_y(before):.1f} {middle:.1f} {_y(after):.1f}"
        curve = f"M{_x(t):.1f} {_y(before):.1f}{bend} {_x(t + 1):.1f} {_y(after):.1f}"
        look = {"opacity": f"{0.6 * prob**0.5:.2f}", "stroke_width": 0.5 + 6.0 * prob}
        drawn.append(element("path", d=curve, class_="step", **look))
    return drawn


def _states(trellis: Trellis) -> list[Markup]:
    circles = []
    for t, z in np.argwhere(trellis.posterior > FAINTEST):
        prob = float(trellis.posterior[t, z])
        title = element("title", f"{word(trellis.words[t])}, state {text(trellis.names[z])}: {probability(prob)}")
        circles.append(element("circle", title, cx=_x(t), cy=_y(z), r=RADIUS * prob**0.5, class_="state"))
    return circles


def _best(path: Sequence[int]) -> Markup:
    """A ring around each state of the Viterbi path."""
    places = ((_x(t), _y(z)) for t, z in enumerate(path))
    return element("g", *(element("circle", cx=x, cy=y, r=RADIUS + 3.0, class_="best") for x, y in places))
