"""Facts about a run: values of its configuration, shown in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trellis.report.format import NOTHING


def model_option(key: str, applies: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A fact that is an option of [model]; the cell is empty for models to which it does not apply."""
    return lambda config: getattr(config.model, key) if applies(config.model) else ""


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The values of nested tables, by "section.key"."""
    values: dict[str, Any] = {}
    for name, value in tables.items():
        values |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return values


def write_fact(value: Any) -> str:
    """Format a fact: powers of two as 16k, booleans as yes and no."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(write_fact, value))
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        return f"{value // 1024}k"
    return f"{value:g}" if isinstance(value, float) else str(value)
