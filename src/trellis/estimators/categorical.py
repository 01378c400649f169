"""HMM with categorical emissions."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.devices import in_words, total_memory
from trellis.emissions import Categorical
from trellis.errors import InputError
from trellis.estimators.arguments import documented
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import Emitter, InfersArguments, draw, one_of
from trellis.estimators.hooks import default
from trellis.estimators.inputs import Array, Observations, SymbolInput, refuse
from trellis.estimators.positional import positional
from trellis.types import Potentials

UNKNOWN = ("error", "uniform")
FLOAT = 8  # bytes


class CategoricalStates(SymbolInput, InfersArguments):
    """The base class of HMMs over symbols: their input, `n_features`, and the emission given by `emissionprob_` [K,
    V]."""

    n_components: int
    n_features: int | None
    init_params: str
    emissionprob_: Array
    handle_unknown = "error"

    def _emission(self) -> Categorical:
        with np.errstate(divide="ignore"):
            return self._categorical(self._tensor(np.log(self.emissionprob_)).T)

    def _categorical(self, table: Tensor) -> Categorical:
        """A categorical emission from log-probabilities [V, K]."""
        kind = Categorical if self.handle_unknown == "error" else OpenCategorical
        return kind(table, None, self.n_components)

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        """Read symbols. An unknown symbol raises an error or, with `handle_unknown="uniform"`, becomes symbol V."""
        observed, names = self._read_integers(X, lengths, fitting)
        if fitting:
            found = int(observed.seen.max()) + 1
            if (needed := FLOAT * self.n_components * found) > total_memory():
                largest = f"X contains the symbol {found - 1}"
                raise InputError(f"{largest}: emissionprob_ would need {in_words(needed)}; number the symbols from 0.")
            self._set_n_features(found)
        rejected = one_of(UNKNOWN, self.handle_unknown, "handle_unknown") == "error" or fitting
        unknown = observed.values >= (self.n_features or 1)
        if not unknown.any():
            return observed
        if rejected:
            advice = f'only the {self.n_features} symbols seen in fitting are accepted, unless handle_unknown="uniform"'
            refuse(unknown, f"the unknown symbol {names[unknown][0]!s}", advice)
        return observed._replace(values=np.where(unknown, self.n_features or 1, observed.values))

    def _set_n_features(self, found: int) -> None:
        """Set the number of symbols: the given number, else that of the emission if the emission is kept, else that of
        the data."""
        if not self._given("n_features"):
            kept = "e" not in self.init_params and hasattr(self, "emissionprob_")
            self._infer("n_features", np.shape(self.emissionprob_)[-1] if kept else found)

    @default
    def _check_and_set_n_features(self, X: Any) -> None:
        """Check that the symbols are integers from 0, and set their number unless it is given."""
        X = np.asarray(X)
        if X.dtype.kind not in "iu":
            raise InputError("Symbols must be integers.")
        if X.min() < 0:
            raise InputError("Symbols must not be negative.")
        self._set_n_features(int(X.max()) + 1)
        if X.max() >= self.n_features:
            raise InputError(f"X contains the symbol {X.max()}, but n_features is {self.n_features}.")

    def _named_statistics(self, statistics: Tensor) -> dict[str, Array]:
        return {"obs": statistics.T.cpu().numpy()}

    def _unnamed_statistics(self, stats: dict[str, Any]) -> Tensor:
        return self._tensor(stats["obs"]).T

    def _empty_statistics(self) -> Tensor:
        return self._tensor(np.zeros((self.n_features or 1, self.n_components)))

    def _emitter(self) -> Emitter:
        cumulative = np.cumsum(self.emissionprob_, axis=1)
        names = getattr(self, "symbols_", range(cumulative.shape[1]))
        return lambda state, random: [names[draw(cumulative[state], random)]]


@documented()
@positional(
    "n_components startprob_prior transmat_prior emissionprob_prior n_features algorithm random_state n_iter tol "
    "verbose params init_params implementation"
)
@dataclass(repr=False, eq=False)
class CategoricalHMM(CategoricalStates, BaseHMM):
    """A hidden Markov model whose states emit symbols: integers from 0, or strings.

    Fitted attributes, all of which can be set by hand: `startprob_` [K], `transmat_` [K, K], `emissionprob_` [K, V]. If
    the model was fitted to strings, `symbols_` [V] holds the string of each symbol.

    >>> X = np.array([[0], [1], [0], [1], [2], [2]] * 5)
    >>> trellis.CategoricalHMM(2, random_state=0).fit(X).predict(X[:3]).shape
    (3,)
    """

    startprob_prior: Any = 1.0
    transmat_prior: Any = 1.0
    _: KW_ONLY
    emissionprob_prior: Any = 1.0
    n_features: int | None = None
    params: str = "ste"
    init_params: str = "ste"
    handle_unknown: str = "error"

    letters = BaseHMM.letters | {"e": "emissionprob_"}

    def _adopt_emission(self, emission: Categorical) -> None:
        self.emissionprob_ = np.exp(emission.table.cpu().numpy().T, order="C")

    def _emission_prior(self) -> float | Tensor | None:
        return self._pseudocounts() if "e" in self.params else None

    def _pseudocounts(self) -> float | Tensor:
        """The Dirichlet prior of the emissions, [], [V] or [K, V], as pseudocounts that broadcast to [V, K]."""
        given = self._pseudocount("emissionprob_prior", (self.n_components, self.n_features or 1))
        return torch.atleast_2d(given).mT if isinstance(given, Tensor) else given

    def free_parameters(self) -> dict[str, int]:
        return super().free_parameters() | {"e": self._distributions() * ((self.n_features or 1) - 1)}

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        if "e" in letters:
            weights = check_random_state(seed).rand(self.n_components, self.n_features or 1)
            self.emissionprob_ = weights / weights.sum(1, keepdims=True)

    def _check(self) -> None:
        super()._check()
        self.emissionprob_ = np.atleast_2d(self.emissionprob_)
        if self.n_features is None:
            self._infer("n_features", self.emissionprob_.shape[1])
        self._check_distributions("emissionprob_", (self.n_components, self.n_features or 1))


class OpenCategorical(Categorical):
    """A categorical emission that gives unknown symbols, and symbols that no state emits, the probability 1 / V in
    every state."""

    def potentials(self, observations: Tensor, all_observed: bool = False) -> Potentials:
        even = self.table.new_full((1, self.num_states), -np.log(len(self.table)))
        known = self.table.where((self.table > -torch.inf).any(1, keepdim=True), even)
        return Potentials(torch.cat([known, even]), observations, all_observed=all_observed)

    def statistics(self, observations: Tensor, visits: Tensor) -> Tensor:
        return visits[:-1]
