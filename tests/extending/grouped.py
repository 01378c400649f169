"""An extension in one file: an emission whose states choose a group of symbols, and its estimator."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.emissions import SymbolEmission
from trellis.estimators.base import BaseHMM
from trellis.estimators.inputs import Observations, read_symbols, whole_numbers


class Grouped(SymbolEmission):
    """p(x | z) = p(group of x | z) / size of the group: every symbol belongs to one group; groups [V], probs [G, K]."""

    def __init__(self, groups: Tensor, probs: Tensor) -> None:
        self.groups, self.probs, self.num_states = groups, probs, probs.shape[1]

    def dense(self) -> Tensor:
        sizes = self.groups.bincount(minlength=len(self.probs)).to(self.probs)
        return (self.probs / sizes.unsqueeze(-1)).log()[self.groups]

    def statistics(self, observations: Tensor, visits: Tensor) -> Tensor:
        return torch.zeros_like(self.probs).index_add(0, self.groups, visits)

    def maximised(self, statistics: Tensor, prior: float | Tensor) -> Grouped:
        return Grouped(self.groups, most_probable(statistics, prior, self.probs, dim=0))


@dataclass(repr=False, eq=False)
class GroupedHMM(BaseHMM):
    """The estimator; fitted attributes `startprob_`, `transmat_` and `groupprob_` [K, G]."""

    _: KW_ONLY
    groups: Any = None  # of the symbols, [V]
    params: str = "stg"
    init_params: str = "stg"

    letters = BaseHMM.letters | {"g": "groupprob_"}

    def _emission(self) -> Grouped:
        return Grouped(torch.as_tensor(self.groups), self._tensor(self.groupprob_).T)

    def _adopt_emission(self, emission: Grouped) -> None:
        self.groupprob_ = emission.probs.T.numpy()

    def _emission_prior(self) -> float | None:
        return 0.0 if "g" in self.params else None

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        if "g" in letters:
            random = check_random_state(seed)
            self.groupprob_ = random.dirichlet(np.ones(1 + max(self.groups)), self.n_components)

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        return whole_numbers(read_symbols(X, lengths, self.missing_values), "symbol")

    def free_parameters(self) -> dict[str, int]:
        states = self.n_components
        return {"s": states - 1, "t": states * (states - 1), "g": states * max(self.groups)}
