"""Evaluation results."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scores:
    """The scores of a model by name (`values`), and the rows of a table that compares it with baselines.

    All rows have the same keys. The last row is the model itself, unless rows are something else, such as splits.

    >>> trellis.train(["a b", "b a"] * 20, family="bigram").scores["test"] > 1
    True
    """

    title: str  # of the table
    values: dict[str, float]
    rows: list[dict[str, Any]] = field(default_factory=list, repr=False)
    headline: str = ""  # the main score

    def __getitem__(self, name: str) -> float:
        return self.values[name]
