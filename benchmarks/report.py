"""Report results: one JSON line each on stdout, and a readable table on stderr at the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("bench", "case", "metric", "ours", "peer", "peers", "ratio", "unit")
rows: list[dict[str, Any]] = []


def emit(
    bench: str,
    case: str,
    metric: str,
    ours: float | None,
    peer: str,
    peers: float | str | None,
    ratio: float | None,
    unit: str,
    **more: Any,
) -> None:
    """Report one comparison: our figure, the peer's name and figure (or why it has none), and the ratio (above 1: ours
    is better)."""
    row = dict(zip(COLUMNS, (bench, case, metric, ours, peer, peers, ratio, unit), strict=True)) | more
    rows.append(row)
    print(json.dumps(row), flush=True)


def peak_mb(process: int) -> float:
    """The largest resident memory of a running process so far (Linux)."""
    status = Path(f"/proc/{process}/status").read_text()
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def show(value: Any) -> str:
    """A number with four significant digits; anything else unchanged."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table() -> None:
    """Print all results since the last call to stderr."""
    cells = [[show(row[column]) for column in COLUMNS] for row in rows]
    rows.clear()
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        plain(cells)
        return
    drawn = Table(*COLUMNS)
    for row in cells:
        drawn.add_row(*row)
    Console(stderr=True, width=None if sys.stderr.isatty() else 140).print(drawn)


def plain(cells: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
    for row in (COLUMNS, *cells):
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)), file=sys.stderr)
