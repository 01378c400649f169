"""A plot of an automaton: states in columns by their distance from the first."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trellis.constraints import Automaton
from trellis.constraints.automaton import label
from trellis.errors import TrellisError
from trellis.report.format import text
from trellis.report.markup import SVG, Markup, element, join, picture
from trellis.storage import write_text

COLUMN, ROW, RADIUS, MARGIN = 190, 110, 18, 90  # pixels
MOST_STATES = 60
LONGEST_LABEL = 26
STYLE = """
.automaton { background: #fff; font: 13px system-ui, sans-serif; } .automaton text { fill: #2b2f36; }
.automaton circle { fill: #fff; stroke: #1c5d8c; stroke-width: 1.5; }
.automaton .label { fill: #6a6f77; font-size: 11px; }
.automaton .edge { stroke: #9aa3ad; fill: none; } .automaton .tip { fill: #9aa3ad; }
"""


class AutomatonPicture(NamedTuple):
    """An automaton with the words of its tokens; notebooks show it as a picture."""

    automaton: Automaton
    words: Sequence[str]

    def _repr_svg_(self) -> str:
        return draw_automaton(self.automaton, self.words, **SVG)

    def save(self, path: str | Path) -> None:
        """Write the picture as an SVG file."""
        write_text(path, f"{self._repr_svg_()}\n")


def draw_automaton(automaton: Automaton, words: Sequence[str], **look: object) -> Markup:
    """An SVG: accepting states have two circles; states that cannot accept are left out."""
    places = layout(automaton)
    if len(places) > MOST_STATES:
        raise TrellisError(f"An automaton of {len(places)} states is too large for a picture; print its text instead.")
    width = max((x for x, _ in places.values()), default=0.0) + MARGIN
    height = max((y for _, y in places.values()), default=0.0) + MARGIN
    edges = [_edge(places[a], places[b], label(tokens, words)) for a, b, tokens in automaton.edges()]
    states = [_state(state, place, bool(automaton.accepting[state])) for state, place in places.items()]
    tip = element("path", d="M0 0L8 4L0 8z", class_="tip")
    marker = element(
        "marker", tip, id="tip", markerWidth=8, markerHeight=8, refX=8, refY=4, orient="auto", viewBox="0 0 8 8"
    )
    size, parts = f"0 0 {width:.0f} {height:.0f}", [element("defs", marker), *edges, *states]
    return picture(STYLE, size, "An automaton", *parts, class_="automaton", width=round(width), **look)


def layout(automaton: Automaton) -> dict[int, tuple[float, float]]:
    """The place of each state that can accept."""
    live, places, level = automaton.live(), dict[int, tuple[float, float]](), [0]
    column = 0
    while level:
        for row, state in enumerate(level):
            places[state] = (MARGIN + column * COLUMN, MARGIN + row * ROW)
        after = np.unique(automaton.moves[level])
        level, column = [int(s) for s in after if live[s] and int(s) not in places], column + 1
    return places


def _state(state: int, place: tuple[float, float], accepting: bool) -> Markup:
    x, y = place
    rings = [element("circle", cx=x, cy=y, r=radius) for radius in ([RADIUS, RADIUS - 4] if accepting else [RADIUS])]
    return join(*rings, element("text", str(state), x=x, y=y + 4, text_anchor="middle"))


def _edge(before: tuple[float, float], after: tuple[float, float], name: str) -> Markup:
    """A loop above a state, or a curve that bends to its left, so that opposite edges do not overlap."""
    (x, y), (u, v) = before, after
    if before == after:
        path, at = f"M{x - 9} {y - 16}C{x - 34} {y - 58} {x + 34} {y - 58} {x + 9} {y - 16}", (x, y - 50)
    else:
        far = float(np.hypot(u - x, v - y))
        along, bend = np.array([u - x, v - y]) / far, np.array([v - y, x - u]) / far * (18 + far / 12)
        start, stop = np.array([x, y]) + along * RADIUS, np.array([u, v]) - along * RADIUS
        middle = (start + stop) / 2 + bend
        path = f"M{start[0]:.1f} {start[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {stop[0]:.1f} {stop[1]:.1f}"
        at = (float(middle[0]), float(middle[1] - 2))
    shown = text(name)
    shown = shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"
    curve = element("path", element("title", text(name)), d=path, class_="edge", marker_end="url(#tip)")
    return join(curve, element("text", shown, x=at[0], y=at[1], text_anchor="middle", class_="label"))
