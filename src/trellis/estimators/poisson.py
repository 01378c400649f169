"""HMM with Poisson emissions."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.emissions.poisson import GammaPrior, Poisson
from trellis.errors import InputError
from trellis.estimators.arguments import documented
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import Emitter
from trellis.estimators.inputs import Array, Observations, check_features, read_numbers, whole_numbers
from trellis.estimators.positional import positional


@documented()
@positional(
    "n_components startprob_prior transmat_prior lambdas_prior lambdas_weight algorithm random_state n_iter tol "
    "verbose params init_params implementation"
)
@dataclass(repr=False, eq=False)
class PoissonHMM(BaseHMM):
    """A hidden Markov model whose states emit counts from Poisson distributions.

    Fitted attributes, all of which can be set by hand: `startprob_` [K], `transmat_` [K, K], `lambdas_` [K, F].

    >>> X = np.array([[0], [1], [0], [1], [2], [2]] * 5)
    >>> trellis.PoissonHMM(2, random_state=0).fit(X).lambdas_.shape
    (2, 1)
    """

    startprob_prior: Any = 1.0
    transmat_prior: Any = 1.0
    lambdas_prior: Any = 0.0
    lambdas_weight: Any = 0.0
    _: KW_ONLY
    params: str = "stl"
    init_params: str = "stl"

    letters = BaseHMM.letters | {"l": "lambdas_"}

    def _emission(self) -> Poisson:
        return Poisson(self._tensor(self.lambdas_))

    def _adopt_emission(self, emission: Poisson) -> None:
        self.lambdas_ = emission.rates.cpu().numpy()

    def _emission_prior(self) -> GammaPrior | None:
        shape = self.n_components, self.n_features
        names = "lambdas_prior", "lambdas_weight"
        return GammaPrior(*(self._prior_tensor(name, shape) for name in names)) if "l" in self.params else None

    def _named_statistics(self, statistics: Tensor) -> dict[str, Array]:
        return {"post": statistics[:, 0].cpu().numpy(), "obs": statistics[:, 1:].cpu().numpy()}

    def _unnamed_statistics(self, stats: dict[str, Any]) -> Tensor:
        return self._tensor(np.column_stack([stats["post"], stats["obs"]]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def free_parameters(self) -> dict[str, int]:
        return super().free_parameters() | {"l": self._distributions() * self.n_features}

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        observed = whole_numbers(read_numbers(X, lengths, self.missing_values), "count")
        if hasattr(self, "lambdas_") and ("l" not in self.init_params or not fitting):
            check_features(observed, np.shape(self.lambdas_)[-1], self)
        return observed

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        """Draw rates from the Gamma distribution with the mean and variance of the data."""
        if "l" not in letters:
            return
        if not len(observed.seen):
            raise InputError("All observations in X are missing.")
        mean, variance = observed.seen.mean(), observed.seen.var()
        shape, scale = (mean**2 / variance, variance / mean) if variance > 0 else (1.0, mean)
        size = (self.n_components, observed.values.shape[1])
        self.lambdas_ = check_random_state(seed).gamma(shape=shape, scale=scale, size=size)

    def _emitter(self) -> Emitter:
        return lambda state, random: random.poisson(self.lambdas_[state])

    def _moments(self) -> tuple[Array, Array]:
        return self.lambdas_, self.lambdas_[:, :, None] * np.eye(self.n_features)

    def _check(self) -> None:
        super()._check()
        self.lambdas_ = np.atleast_2d(np.asarray(self.lambdas_, np.float64))
        if len(self.lambdas_) != self.n_components:
            raise InputError(f"lambdas_ must have shape (n_components, n_features), not {self.lambdas_.shape}.")
        if not (self.lambdas_ >= 0).all():
            raise InputError("lambdas_ contains negative or NaN rates.")
        self.n_features = self.lambdas_.shape[1]
