"""Evaluation results."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scores:
    """The scores of a model by name (`values`), and the rows of a table for reports.

    All rows have the same keys. For a language model, each row is a model: baselines first, this model last. For other
    models, each row is a split.

    >>> trellis.train(["a b", "b a"] * 20, family="bigram").scores["test"] > 1
    True
    """

    title: str  # of the table
    values: dict[str, float]
    rows: list[dict[str, Any]] = field(default_factory=list, repr=False)
    headline: str = ""  # the main score

    def __getitem__(self, name: str) -> float:
        return self.values[name]
