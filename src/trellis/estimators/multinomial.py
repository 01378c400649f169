"""HMM with multinomial emissions."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.stats import multinomial
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.emissions import Multinomial
from trellis.errors import InputError
from trellis.estimators.arguments import documented
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import Emitter, InfersArguments
from trellis.estimators.hooks import default
from trellis.estimators.inputs import Array, Observations, check_features, read_numbers, refuse, whole_numbers
from trellis.estimators.positional import positional


@documented()
@positional(
    "n_components n_trials startprob_prior transmat_prior algorithm random_state n_iter tol verbose params init_params "
    "implementation"
)
@dataclass(repr=False, eq=False)
class MultinomialHMM(InfersArguments, BaseHMM):
    """A hidden Markov model whose states emit counts of symbols: X [N, V], one row of counts per step.

    Fitted attributes, all of which can be set by hand: `startprob_` [K], `transmat_` [K, K], `emissionprob_` [K, V].

    >>> X = np.array([[3, 1, 0], [2, 2, 0], [0, 1, 3], [0, 0, 4]] * 5)
    >>> trellis.MultinomialHMM(2, random_state=0).fit(X).emissionprob_.shape
    (2, 3)
    """

    n_trials: Any = None
    _: KW_ONLY
    emissionprob_prior: Any = 1.0
    params: str = "ste"
    init_params: str = "ste"

    letters = BaseHMM.letters | {"e": "emissionprob_"}

    def _emission(self) -> Multinomial:
        return Multinomial(self._tensor(self.emissionprob_))

    def _adopt_emission(self, emission: Multinomial) -> None:
        self.emissionprob_ = emission.probs.cpu().numpy()

    def _emission_prior(self) -> float | Tensor | None:
        shape = self.n_components, self.n_features
        return self._pseudocount("emissionprob_prior", shape) if "e" in self.params else None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def free_parameters(self) -> dict[str, int]:
        return super().free_parameters() | {"e": self._distributions() * (self.n_features - 1)}

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        observed = whole_numbers(read_numbers(X, lengths, self.missing_values), "count")
        if hasattr(self, "emissionprob_") and ("e" not in self.init_params or not fitting):
            check_features(observed, np.shape(self.emissionprob_)[-1], self)
        if fitting:
            self._check_trials(observed.values, observed.missing)
        return observed

    def _check_trials(self, counts: Array, missing: Array) -> None:
        """Check the sums of the rows against `n_trials`, or set `n_trials`."""
        sums = counts.sum(1)
        if not self._given("n_trials"):
            return self._infer("n_trials", sums)
        expected = np.asarray(self.n_trials)
        if expected.ndim and expected.shape != sums.shape:
            raise InputError(f"n_trials has {expected.size} entries, but X has {len(sums)} rows.")
        refuse((sums != expected) & ~missing, "a row that does not sum to n_trials", "correct n_trials, or omit it")
        return None

    @default
    def _check_and_set_n_features(self, X: Any) -> None:
        """Check the counts and the number of symbols. Set the number of symbols and `n_trials` from the data, if they
        are not given."""
        super()._check_and_set_n_features(X)
        X = np.asarray(X)
        if X.dtype.kind not in "iu" or X.min() < 0:
            raise InputError("X must contain counts: integers that are not negative.")
        if self.n_trials is not None and not (X.sum(1) == self.n_trials).all():
            raise InputError("The rows of X do not sum to n_trials; correct n_trials, or leave it None.")
        self._check_trials(X, np.zeros(len(X), bool))

    def _named_statistics(self, statistics: Tensor) -> dict[str, Array]:
        return {"obs": statistics.cpu().numpy()}

    def _unnamed_statistics(self, stats: dict[str, Any]) -> Tensor:
        return self._tensor(stats["obs"])

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        if "e" in letters:
            weights = check_random_state(seed).rand(self.n_components, observed.values.shape[1])
            self.emissionprob_ = weights / weights.sum(1, keepdims=True)

    def _trials(self) -> int:
        """`n_trials`, the sum of every row of X; raises if it is not a single number."""
        trials = np.unique(self.n_trials)
        if self.n_trials is None or len(trials) != 1:
            raise InputError("n_trials is not a single number; to sample or forecast, set it to one.")
        return int(trials[0])

    def _emitter(self) -> Emitter:
        trials = self._trials()
        return lambda state, random: multinomial.rvs(trials, self.emissionprob_[state], random_state=random)

    def _moments(self) -> tuple[Array, Array]:
        trials, probs = self._trials(), self.emissionprob_
        return trials * probs, trials * (
            probs[:, :, None] * np.eye(self.n_features) - probs[:, :, None] * probs[:, None]
        )

    def _check(self) -> None:
        super()._check()
        self.emissionprob_ = np.atleast_2d(np.asarray(self.emissionprob_, np.float64))
        self._check_distributions("emissionprob_", (self.n_components, self.emissionprob_.shape[1]))
        self.n_features = self.emissionprob_.shape[1]
