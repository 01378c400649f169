"""A picture of p(z' | z): rows lead to columns, states that behave alike stand side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage

from trellis.report.format import probability, word
from trellis.report.markup import Markup, element

SIDE, SMALLEST, LARGEST = 680, 14, 44  # pixels: of the whole, and of one cell
MARGIN, LEGEND = 130, 56
LONGEST_NAME = 14
FAINTEST = 5e-4  # smaller probabilities would be invisible
SHADES = (0.01, 0.05, 0.2, 0.5, 1.0)


def likeness_order(matrix: np.ndarray) -> np.ndarray:
    """An order of states [n] in which those with similar rows and columns of p(z' | z) [n, n] are neighbours.

    Average linkage on square roots of probabilities (Hellinger distance), leaves in their optimal order."""
    if len(matrix) < 3:
        return np.arange(len(matrix))
    profiles = np.sqrt(np.concatenate([matrix, matrix.T], 1))
    return leaves_list(linkage(profiles, "average", optimal_ordering=True))


def draw_transitions(matrix: np.ndarray, states: Sequence[int], names: Sequence[str]) -> Markup:
    """The heat map of p(z' | z) [n, n] among `states` [n], each called by its name [n] and linked to its row."""
    count = len(states)
    order = likeness_order(matrix)
    cell = min(max(SIDE // count, SMALLEST), LARGEST)
    side = cell * count
    width = max(side, SIDE // 2) + 2 * MARGIN
    return element(
        "svg",
        element("rect", x=MARGIN, y=MARGIN, width=side, height=side, class_="ground"),
        *_names([(states[z], names[z]) for z in order], cell),
        *_cells(matrix[np.ix_(order, order)], [names[z] for z in order], cell),
        element("text", "from ↓   to →", x=MARGIN - 8, y=MARGIN - 8, text_anchor="end", class_="title"),
        _legend(MARGIN + side + 20),
        viewBox=f"0 0 {width} {MARGIN + side + LEGEND}",
        style=f"max-width:{width}px",
        class_="heatmap",
        role="img",
        aria_label="Transition probabilities between states",
    )


def _cells(matrix: np.ndarray, names: list[str], cell: int) -> list[Markup]:
    """One square for each probability that can be seen; its darkness grows with the square root."""
    return [
        element(
            "rect",
            element("title", f"{word(names[row])} → {word(names[column])}: {probability(matrix[row, column])}"),
            x=MARGIN + int(column) * cell,
            y=MARGIN + int(row) * cell,
            width=cell - 1,
            height=cell - 1,
            fill_opacity=f"{shade(matrix[row, column]):.2f}",
        )
        for row, column in np.argwhere(matrix > FAINTEST)
    ]


def shade(prob: float) -> float:
    """How dark a probability is drawn."""
    return float(np.sqrt(prob))


def _names(states: list[tuple[int, str]], cell: int) -> list[Markup]:
    """Names left of the rows, links to the table, and above the columns."""
    middles = [MARGIN + cell * (i + 0.5) for i in range(len(states))]
    shown = [word(name, LONGEST_NAME) for _, name in states]
    left = [
        element("a", element("text", name, x=MARGIN - 8, y=at + 4, text_anchor="end"), href=f"#state-{state}")
        for (state, _), name, at in zip(states, shown, middles, strict=True)
    ]
    above = [
        element("text", name, transform=f"translate({at + 4:.1f} {MARGIN - 8}) rotate(-90)")
        for name, at in zip(shown, middles, strict=True)
    ]
    return left + above


def _legend(y: int) -> Markup:
    """What the shades mean."""
    shades = [
        element("rect", x=MARGIN + 48 * i, y=y, width=14, height=14, fill_opacity=f"{shade(prob):.2f}")
        for i, prob in enumerate(SHADES)
    ]
    values = [element("text", f"{prob:g}", x=MARGIN + 48 * i + 19, y=y + 11) for i, prob in enumerate(SHADES)]
    return element("g", *shades, *values, class_="legend")
