"""What an evaluation found."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scores:
    """The figures of a model by name, and the rows of the table that shows them, beside its baselines where it has any.

    Every row has the same keys; that of the model itself is the last one where rows are models.

    >>> trellis.train(["a b", "b a"] * 20, family="bigram").scores["test"] > 1
    True
    """

    title: str  # of the table
    values: dict[str, float]
    rows: list[dict[str, Any]] = field(default_factory=list)
    headline: str = ""  # the value that one would quote

    def __getitem__(self, name: str) -> float:
        return self.values[name]
