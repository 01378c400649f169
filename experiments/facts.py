"""What a configuration says, in the words of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.options import suggestion
from trellis.report.format import NOTHING

LIVE: dict[str, Callable[[HMMConfig], int | None]] = {
    "full": lambda model: model.states,
    "brown": lambda model: model.states // model.classes,
    "uniform": lambda model: model.states_per_word,
    "cloned": lambda model: None,
}
NAMED: dict[str, Callable[[Any], Any]] = {
    "n, l": lambda config: (config.model.states, config.model.length),
    "states": lambda config: config.model.states if has_states(config) else "",
    "factored": lambda config: config.model.factored if has_states(config) else "",
    "features": lambda config: config.model.features if goes_through_features(config) else "",
    "map": lambda config: config.model.feature_map if goes_through_features(config) else "",
    "live": lambda config: LIVE[config.model.emission](config.model),  # states of a word
    "dropout": lambda config: (
        config.model.dropout
        if config.model.dropout == "none"
        else f"{config.model.dropout} {config.model.dropout_rate:g}"
    ),
}


def goes_through_features(config: Any) -> bool:
    return str(config.model.params).startswith("lowrank")


def has_states(config: Any) -> bool:
    return config.model.family == "hmm"


def fact(config: Any, name: str) -> Any:
    """A named fact, or the value of a key "section.key"; None where there is no configuration."""
    if config is None:
        return None
    values = flat(asdict(config))
    known = [*NAMED, *values]
    if name not in known:
        raise TrellisError(f"A table asks for the fact {name!r}, which is not known{suggestion(name, known)}")
    return NAMED[name](config) if name in NAMED else values[name]


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
