"""Evaluation results."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scores:
    """The scores of a model by name, and the rows of a table for reports. `scores[name]` is `scores.values[name]`.

    Parameters
    ----------
    title
        The title of the table.
    values
        The scores by name, such as "valid" and "test".
    rows
        The rows of the table. For a language model, each row is a model: baselines first, this model last. For other
        models, each row is a split.
    headline
        The name of the main score.

    Examples
    --------
    >>> trellis.train(["a b", "b a"] * 20, family="bigram").scores["test"] > 1
    True
    """

    title: str
    values: dict[str, float]
    rows: list[dict[str, Any]] = field(default_factory=list, repr=False)
    headline: str = ""

    def __getitem__(self, name: str) -> float:
        return self.values[name]
