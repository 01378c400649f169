"""A heat map of p(z' | z): rows are z, columns are z', and similar states are adjacent."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage

from trellis.report.format import probability, word
from trellis.report.markup import Markup, element

SIDE, SMALLEST, LARGEST = 900, 14, 44  # pixels: total, and minimum and maximum cell
CHARACTER, LONGEST_NAME = 7, 14  # pixels per character, and maximum characters
CORNER, LEGEND, SPACING = 90, 60, 58  # pixels
FAINTEST = 5e-4  # smaller probabilities would be invisible
SHADES = (0.01, 0.05, 0.2, 0.5, 1.0)


def likeness_order(matrix: np.ndarray) -> np.ndarray:
    """An order of states [n] in which those with similar rows and columns of p(z' | z) [n, n] are adjacent.

    Average linkage on square roots of probabilities (Hellinger distance), with optimal leaf ordering."""
    if len(matrix) < 3:
        return np.arange(len(matrix))
    profiles = np.sqrt(np.concatenate([matrix, matrix.T], 1))
    return leaves_list(linkage(profiles, "average", optimal_ordering=True))


def shade(prob: float) -> float:
    """The opacity of a probability."""
    return math.sqrt(prob)


def draw_transitions(matrix: np.ndarray, anchors: Sequence[str], names: Sequence[str]) -> Markup:
    """The heat map of p(z' | z) [n, n], labelled by name [n] and linked to the rows of a table by their ids [n]."""
    order = likeness_order(matrix)
    shown = [word(names[z], LONGEST_NAME) for z in order]
    margin = max(CORNER, CHARACTER * max(map(len, shown)) + 12)
    cell = min(max((SIDE - margin) // len(names), SMALLEST), LARGEST)
    side = cell * len(names)
    width = margin + max(side, SPACING * len(SHADES))
    picture = element(
        "g",
        element("rect", width=side, height=side, class_="ground"),
        *_names([anchors[z] for z in order], shown, cell),
        *_cells(matrix[np.ix_(order, order)], [names[z] for z in order], cell),
        element("text", "from ↓  to →", x=-10, y=-10, text_anchor="end"),
        _legend(side + 24),
        transform=f"translate({margin} {margin})",
    )
    return element(
        "svg",
        picture,
        viewBox=f"0 0 {width} {margin + side + LEGEND}",
        width=width,
        class_="heatmap",
        role="img",
        aria_label="Transition probabilities between states",
    )


def _cells(matrix: np.ndarray, names: list[str], cell: int) -> list[Markup]:
    """One square per visible probability."""
    cells = []
    for row, column in np.argwhere(matrix > FAINTEST):
        prob, place = matrix[row, column], {"x": column * cell, "y": row * cell, "width": cell - 1, "height": cell - 1}
        title = element("title", f"{word(names[row])} → {word(names[column])}: {probability(prob)}")
        cells.append(element("rect", title, **place, fill_opacity=f"{shade(prob):.2f}"))
    return cells


def _names(anchors: list[str], names: list[str], cell: int) -> list[Markup]:
    """Names left of the rows, as links to the table, and above the columns."""
    left, above = [], []
    for i, (anchor, name) in enumerate(zip(anchors, names, strict=True)):
        base = cell * (i + 0.5) + 4
        label = element("text", name, x=-10, y=base, text_anchor="end")
        left.append(element("a", label, href=f"#{anchor}"))
        above.append(element("text", name, transform=f"translate({base:.1f} -10) rotate(-90)"))
    return left + above


def _legend(y: int) -> Markup:
    """The legend of shades."""
    parts = []
    for i, prob in enumerate(SHADES):
        parts.append(element("rect", x=SPACING * i, y=y, width=14, height=14, fill_opacity=f"{shade(prob):.2f}"))
        parts.append(element("text", f"{prob:g}", x=SPACING * i + 20, y=y + 11))
    return element("g", *parts, class_="legend")
