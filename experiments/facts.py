"""Facts about a run, from its configuration to the cell of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trellis.report.format import NOTHING


def model_option(key: str, applies: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """The fact that is an option of [model]; models that it does not apply to leave the cell empty."""
    return lambda config: getattr(config.model, key) if applies(config.model) else ""


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of nested tables under "section.key"."""
    values: dict[str, Any] = {}
    for name, value in tables.items():
        values |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return values


def write_fact(value: Any) -> str:
    """Powers of two as 16k, switches as yes and no."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(write_fact, value))
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        return f"{value // 1024}k"
    return f"{value:g}" if isinstance(value, float) else str(value)
