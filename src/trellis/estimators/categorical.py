"""HMM with categorical emissions."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.emissions import Categorical
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import Emitter, draw, one_of
from trellis.estimators.inputs import Observations, SymbolInput, refuse
from trellis.types import Potentials

UNKNOWN = ("error", "uniform")


@dataclass(repr=False, eq=False)
class CategoricalHMM(SymbolInput, BaseHMM):
    """A hidden Markov model whose states emit symbols: integers from 0, or strings.

    Fitted attributes, all of which can be set by hand: `startprob_` [K], `transmat_` [K, K], `emissionprob_` [K, V];
    `symbols_` [V] names the symbols if the model was fitted to strings.

    >>> X = np.array([[0], [1], [0], [1], [2], [2]] * 5)
    >>> trellis.CategoricalHMM(2, random_state=0).fit(X).predict(X[:3]).shape
    (3,)
    """

    startprob_prior: Any = 1.0
    transmat_prior: Any = 1.0
    _: KW_ONLY
    emissionprob_prior: Any = 1.0
    n_features: int | None = None  # number of symbols; default: inferred from the data
    params: str = "ste"
    init_params: str = "ste"
    handle_unknown: str = "error"  # symbols unseen in fitting: error | uniform (equally probable in every state)

    letters = BaseHMM.letters | {"e": "emissionprob_"}
    _inferred = None  # n_features if inferred by fitting

    def _emission(self) -> Categorical:
        with np.errstate(divide="ignore"):
            return self._categorical(self._tensor(np.log(self.emissionprob_)).T)

    def _categorical(self, table: Tensor) -> Categorical:
        """A categorical emission from log-probabilities [V, K]."""
        kind = Categorical if self.handle_unknown == "error" else OpenCategorical
        return kind(table, None, self.n_components)

    def _adopt_emission(self, emission: Categorical) -> None:
        self.emissionprob_ = np.ascontiguousarray(emission.table.exp().T.cpu().numpy())

    def _emission_prior(self) -> float | Tensor | None:
        return self._pseudocounts() if "e" in self.params else None

    def _pseudocounts(self) -> float | Tensor:
        """The Dirichlet prior of the emissions, [], [V] or [K, V], as pseudocounts that broadcast to [V, K]."""
        given = self._pseudocount(self.emissionprob_prior)
        return torch.atleast_2d(given).mT if isinstance(given, Tensor) else given

    def free_parameters(self) -> dict[str, int]:
        return super().free_parameters() | {"e": self._distributions() * ((self.n_features or 1) - 1)}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        given = super().get_params(deep)
        return given | {"n_features": None} if self._inferred == self.n_features else given

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        """Read symbols; unknown ones raise an error or, with `handle_unknown="uniform"`, become symbol V."""
        observed, names = self._read_integers(X, lengths, fitting)
        if fitting:
            self._set_n_features(int(observed.seen.max()) + 1)
        rejected = one_of(UNKNOWN, self.handle_unknown, "handle_unknown") == "error" or fitting
        unknown = observed.values >= (self.n_features or 1)
        if not unknown.any():
            return observed
        if rejected:
            advice = f'only the {self.n_features} symbols seen in fitting are accepted, unless handle_unknown="uniform"'
            refuse(unknown, f"the unknown symbol {names[unknown][0]!s}", advice)
        return observed._replace(values=np.where(unknown, self.n_features or 1, observed.values))

    def _set_n_features(self, found: int) -> None:
        """Set the number of symbols: as given, or from `emissionprob_` if that is kept, or from the data."""
        if self.n_features is None or self.n_features == self._inferred:
            kept = "e" not in self.init_params and hasattr(self, "emissionprob_")
            self.n_features = self._inferred = np.shape(self.emissionprob_)[-1] if kept else found

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        if "e" in letters:
            weights = check_random_state(seed).rand(self.n_components, self.n_features or 1)
            self.emissionprob_ = weights / weights.sum(1, keepdims=True)

    def _emitter(self) -> Emitter:
        cumulative = np.cumsum(self.emissionprob_, axis=1)
        names = getattr(self, "symbols_", range(cumulative.shape[1]))
        return lambda state, random: [names[draw(cumulative[state], random)]]

    def _check(self) -> None:
        super()._check()
        self.emissionprob_ = np.atleast_2d(self.emissionprob_)
        if self.n_features is None:
            self.n_features = self._inferred = self.emissionprob_.shape[1]
        self._check_distributions("emissionprob_", (self.n_components, self.n_features))


class OpenCategorical(Categorical):
    """A categorical emission in which unknown symbols, and those that no state emits, have probability 1 / V."""

    def potentials(self, observations: Tensor, all_observed: bool = False) -> Potentials:
        even = self.table.new_full((1, self.num_states), -np.log(len(self.table)))
        known = self.table.where((self.table > -torch.inf).any(1, keepdim=True), even)
        return Potentials(torch.cat([known, even]), observations, all_observed=all_observed)

    def statistics(self, observations: Tensor, visits: Tensor) -> Tensor:
        return visits[:-1]
