"""Samples from weights, and the weights of constrained tokens, on a GPU. See `inference.constrained`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Table(NamedTuple):
    """Where tokens lead, and the messages there."""

    place: Tensor  # the row of the message of each pair (t, s): [T, S]
    after: Tensor  # the next state for each state and class: [S, C]
    accepting: Tensor  # [S] bool
    classes: Tensor  # of the tokens: [V]
    values: Tensor  # of the messages, divided by exp of their scales: [R, K]
    scales: Tensor  # [R] float64
    ends: range  # the numbers of tokens after which a sequence may end
    end: int  # the token that ends it, or -1

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.values.shape[1], *self.place.shape, self.after.shape[1], self.ends.start, self.ends.stop
