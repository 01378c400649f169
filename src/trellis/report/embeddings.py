"""2-D plots of state and symbol embeddings."""

from collections.abc import Mapping, Sequence

import numpy as np

from trellis.report.curves import Scale
from trellis.report.format import word
from trellis.report.markup import SVG, Markup, element, picture

SIDE, MARGIN, GAP = 420, 40, 40  # pixels
LONGEST_NAME, MOST_NAMES = 12, 200
MEANINGS = {"u": "states, incoming", "z": "states, outgoing", "w": "states, to symbols", "v": "symbols"}
STYLE = """
svg { background: #fdfcfa; font: 12px system-ui, sans-serif; }
text { fill: #6a6f77; } .axis { stroke: #e4e1da; }
.u, .w { fill: #1c5d8c; } .z, .v { fill: #c2542d; } text.u, text.z, text.v, text.w { font-size: 11px; }
"""


def plane(vectors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Embeddings [n, l] of each type as points [n, 2]: as given, or projected on the two joint principal components."""
    together = np.concatenate(list(vectors.values()))
    if together.shape[1] < 2:
        together = np.pad(together, ((0, 0), (0, 1)))
    elif together.shape[1] > 2:
        centred = together - together.mean(0)
        together = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    ends = np.cumsum([len(points) for points in vectors.values()])[:-1]
    return dict(zip(vectors, np.split(together, ends), strict=True))


def draw_embeddings(
    chain: Mapping[str, np.ndarray], emission: Mapping[str, np.ndarray], symbols: Sequence[str]
) -> Markup:
    """Two panels, with the embeddings of the transitions and of the emissions, as a standalone SVG."""
    panels = [_panel(plane(vectors), symbols, i * (SIDE + GAP)) for i, vectors in enumerate((chain, emission))]
    size = f"0 0 {2 * SIDE + GAP} {SIDE + MARGIN}"
    return picture(STYLE, size, "Vectors of states and symbols", *panels, **SVG)


def _panel(points: Mapping[str, np.ndarray], symbols: Sequence[str], left: float) -> Markup:
    every = np.concatenate(list(points.values()))
    reach = float(np.abs(every).max()) or 1.0
    x, y = Scale(-reach, reach, left + MARGIN, left + SIDE - MARGIN), Scale(-reach, reach, SIDE - MARGIN, MARGIN)
    axes = [
        element("line", x1=x(-reach), x2=x(reach), y1=y(0.0), y2=y(0.0), class_="axis"),
        element("line", x1=x(0.0), x2=x(0.0), y1=y(-reach), y2=y(reach), class_="axis"),
    ]
    kinds = [_points(kind, values, symbols, x, y) for kind, values in points.items()]
    legend = [
        element("text", f"{kind}: {MEANINGS[kind]}", x=left + MARGIN + 170 * i, y=SIDE + 20, class_=kind)
        for i, kind in enumerate(points)
    ]
    return element("g", *axes, *kinds, *legend)


def _points(kind: str, points: np.ndarray, symbols: Sequence[str], x: Scale, y: Scale) -> Markup:
    names = symbols if kind == "v" else [str(state) for state in range(len(points))]
    parts = []
    for name, (across, up) in zip(names, points.tolist(), strict=True):
        parts.append(element("circle", element("title", word(name)), cx=x(across), cy=y(up), r=3, class_=kind))
        if len(points) <= MOST_NAMES:
            parts.append(element("text", word(name, LONGEST_NAME), x=x(across) + 5, y=y(up) + 4, class_=kind))
    return element("g", *parts)
