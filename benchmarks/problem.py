"""The problems that all libraries solve: a random HMM, and tokens that follow Zipf's law."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Parameters(NamedTuple):
    """An HMM, float64."""

    start: Array  # [K]
    transition: Array  # [K, K]
    emission: Array  # [K, V]


@dataclass(frozen=True)
class Shape:
    """States and sequences of a problem."""

    states: int
    sequences: int
    length: int

    @property
    def name(self) -> str:
        return f"K={self.states} {self.sequences}x{self.length}"

    @property
    def num_tokens(self) -> int:
        return self.sequences * self.length


@dataclass(frozen=True)
class Problem(Shape):
    """Sizes and a seed, which determine the parameters and the tokens."""

    symbols: int
    seed: int = 0

    @property
    def name(self) -> str:
        return f"K={self.states} V={self.symbols} {self.sequences}x{self.length}"

    @cached_property
    def parameters(self) -> Parameters:
        draw, states = np.random.default_rng(self.seed).dirichlet, self.states
        return Parameters(
            draw(np.ones(states)), draw(np.ones(states), states), draw(np.ones(self.symbols), states)
        )  # fmt: skip

    @cached_property
    def tokens(self) -> Array:
        """[B, T] int64 by Zipf's law: symbol i about as often as 1 / (i + 1)."""
        uniform = np.random.default_rng(self.seed + 1).random((self.sequences, self.length))
        return ((self.symbols + 1) ** uniform).astype(np.int64) - 1

    def path_score(self, path: Array) -> float:
        """log p(z, x) of a path [B, T], summed over all sequences."""
        start, transition, emission = (np.log(part) for part in self.parameters)
        moves = transition[path[:, :-1], path[:, 1:]].sum()
        return float(start[path[:, 0]].sum() + moves + emission[path, self.tokens].sum())
