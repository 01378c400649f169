"""Formatting of numbers and words, for pages and terminals."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trellis.errors import printable as text

NOTHING = "–"
UNITS = (3600, "h"), (60, "min"), (1, "s")
SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def word(token: str, longest: int = 40) -> str:
    """One token with every character visible, truncated if it is very long."""
    return shortened(text("".join(SIGNS.get(c, c) for c in token[: longest + 1])), longest)


def shortened(shown: str, longest: int) -> str:
    """The string, cut off with an ellipsis if it is longer than `longest`."""
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


@dataclass(frozen=True)
class finite:  # noqa: N801
    """A number format that also handles missing and infinite values."""

    pattern: str

    def __call__(self, value: float | None) -> str:
        if value is None or math.isnan(value):
            return NOTHING
        return self.pattern.format(value) if math.isfinite(value) else "∞" if value > 0 else "-∞"


perplexity, log_prob, whole = finite("{:,.1f}"), finite("{:.2f}"), finite("{:,.0f}")
probability, difference, p_value = finite("{:.3f}"), finite("{:+,.2f}"), finite("{:.2g}")
bits, bits_difference = finite("{:.3f}"), finite("{:+.4f}")


def percent(share: float) -> str:
    """A percentage with one decimal, or two significant digits if smaller."""
    return f"{share:.1%}" if share == 0 or share >= 1e-3 else f"{100 * share:.2g}%"


def duration(seconds: float, longest: float | None = None) -> str:
    """A time in the unit that suits the longest of several."""
    most = seconds if longest is None else longest
    size, unit = next(pair for pair in UNITS if most >= pair[0] * 3 or pair[0] == 1)
    return f"{seconds / size:.3g} {unit}" if seconds < 999 * size else f"{seconds / size:,.0f} {unit}"


def compact(value: float) -> str:
    """A round number in few characters: 1500000 is 1.5M."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{sign}" if value < 1e15 else f"{value:.0e}"
    return f"{value:g}"


class Column(NamedTuple):
    """A table column: its heading, its number format, and which value is best; only held-out scores are ranked."""

    heading: str
    write: Callable[[Any], str] = text
    best: Callable[[list[float]], float] | None = None

    @property
    def is_text(self) -> bool:
        return not (isinstance(self.write, finite) or self.write in (percent, compact))

    def best_of(self, values: Sequence[Any]) -> set[int]:
        """The rows with the best value, if there is more than one value."""
        known = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
        if self.best is None or len(known) < 2:
            return set()
        best = self.best(known)
        return {row for row, value in enumerate(values) if value == best}


COLUMNS = {
    "model": Column("model"),
    "states": Column("states", whole),
    "parameters": Column("parameters", whole),
    "train": Column("train", perplexity),
    "valid": Column("valid", perplexity, min),
    "test": Column("test", perplexity, min),
    "bits_per_character": Column("bits/char", bits, min),
    "tokens_per_second": Column("tokens/s", whole),
    "perplexity": Column("perplexity", perplexity),
    "probability": Column("probability", probability),
    "tokens": Column("tokens", whole),
    "state": Column("state", whole),
    "size": Column("bytes", whole),
    "token": Column("token", word),
    "word": Column("word", word),
    "cosine": Column("cosine", probability),
    "value": Column("value", probability),
    "nats": Column("nats per token", log_prob),
    "gain": Column("gain over no memory", log_prob),
}


def plain(value: object) -> str:
    """Text, or a number to four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def columns_of(names: Iterable[str]) -> list[Column]:
    """The columns of these names; unknown names are formatted as text, numbers to four digits."""
    return [COLUMNS.get(name, Column(name, plain)) for name in names]
