"""A plot of a binary tree over a sentence: words at the bottom, constituents above them."""

from collections.abc import Sequence

from trellis.report.format import text, word
from trellis.report.markup import Markup, element, picture

COLUMN, ROW, MARGIN = 78, 44, 18  # pixels: column of a word, row of a constituent, margin
LONGEST_WORD = 10
STYLE = """
.tree { background: #fff; font: 13px system-ui, sans-serif; } .tree text { fill: #2b2f36; text-anchor: middle; }
.tree .symbol { fill: #1c5d8c; } .tree .word { font-weight: 600; } .tree path { stroke: #b9bec6; fill: none; }
"""


def draw_tree(words: Sequence[str], nodes: Sequence[tuple[int, int, str]], **look: object) -> Markup:
    """An SVG of constituents (start, stop, name), parents first. `look` has attributes of the SVG element."""
    places = arranged(nodes)
    lowest = max((level for _, level in places), default=0)
    width, height = 2 * MARGIN + COLUMN * max(1, len(words)), 2 * MARGIN + ROW * (lowest + 2)
    lines: list[Markup] = []
    names: list[Markup] = []
    open_: list[tuple[int, float, float]] = []
    for (start, stop, name), (x, level) in zip(nodes, places, strict=True):
        y = MARGIN + ROW * (level + 0.5)
        while open_ and open_[-1][0] <= start:
            open_.pop()
        if open_:
            _, above, top = open_[-1]
            lines.append(element("path", d=f"M{above:.1f} {top + 6:.1f}L{x:.1f} {y - 14:.1f}"))
        open_.append((stop, x, y))
        names.append(element("text", text(name), x=x, y=y, class_="symbol"))
        if stop - start == 1:
            low = MARGIN + ROW * (lowest + 1.5)
            lines.append(element("path", d=f"M{x:.1f} {y + 6:.1f}L{x:.1f} {low - 14:.1f}"))
            names.append(element("text", word(words[start], LONGEST_WORD), x=x, y=low, class_="word"))
    parts = [*lines, *names]
    return picture(STYLE, f"0 0 {width} {height}", "The tree of a sentence", *parts, class_="tree", width=width, **look)


def arranged(nodes: Sequence[tuple[int, int, str]]) -> list[tuple[float, int]]:
    """The horizontal place of every constituent, above the middle of its words, and its level from the top."""
    places: list[tuple[float, int]] = []
    open_: list[int] = []
    for start, stop, _ in nodes:
        while open_ and open_[-1] <= start:
            open_.pop()
        places.append((MARGIN + COLUMN * (start + stop) / 2, len(open_)))
        open_.append(stop)
    return places
