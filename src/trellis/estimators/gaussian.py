"""HMM with Gaussian emissions."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.emissions.gaussian import COVARIANCES, Covariance, Gaussian, GaussianPrior
from trellis.errors import InputError
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import Emitter, one_of
from trellis.estimators.inputs import Array, Observations, check_features, read_numbers

KMEANS_STARTS = 10


@dataclass(repr=False, eq=False)
class GaussianHMM(BaseHMM):
    """A hidden Markov model whose states emit vectors from normal distributions.

    Fitted attributes, all of which can be set by hand: `startprob_` [K], `transmat_` [K, K], `means_` [K, F] and
    `covars_`. Reading `covars_` always returns matrices [K, F, F]. To set it, assign an array in the shape of
    `covariance_type`: spherical [K], diag [K, F], full [K, F, F], tied [F, F].

    >>> X = np.concatenate([np.full((20, 1), level) for level in (0.0, 5.0)]) + 0.1 * np.sin(np.arange(40))[:, None]
    >>> np.sort(trellis.GaussianHMM(2, random_state=0).fit(X).means_[:, 0]).round()
    array([0., 5.])
    """

    covariance_type: str = "diag"  # spherical | diag | full | tied
    min_covar: float = 1e-3  # added to the initial variances
    _: KW_ONLY
    means_prior: Any = 0.0
    means_weight: Any = 0.0
    covars_prior: Any = 1e-2
    covars_weight: Any = 1.0
    params: str = "stmc"
    init_params: str = "stmc"

    letters = BaseHMM.letters | {"m": "means_", "c": "_covars_"}

    @property
    def kind(self) -> Covariance:
        return COVARIANCES[one_of(tuple(COVARIANCES), self.covariance_type, "covariance_type")]

    @property
    def covars_(self) -> Array:
        """The covariances as matrices [K, F, F]."""
        features = np.shape(self.means_)[1]
        return self.kind.full(torch.from_numpy(self._covars_), self.n_components, features).numpy()

    @covars_.setter
    def covars_(self, covars: Any) -> None:
        self._covars_ = np.array(covars, np.float64)
        if self.covariance_type == "spherical":
            self._covars_ = self._covars_.reshape(len(self._covars_), -1)[:, 0]
        matrices = self._check_covars()
        if not torch.allclose(matrices, matrices.mT) or not bool((torch.linalg.eigvalsh(matrices) > 0).all()):
            raise InputError("covars_ must be symmetric and positive definite.")

    def _emission(self) -> Gaussian:
        trained = "".join(letter for letter in "mc" if letter in self.params)
        return Gaussian(self._tensor(self.means_), self._tensor(self._covars_), self.covariance_type, trained)

    def _adopt_emission(self, emission: Gaussian) -> None:
        self.means_, self._covars_ = emission.means.cpu().numpy(), emission.covars.cpu().numpy()

    def _emission_prior(self) -> GaussianPrior | None:
        named = self.means_prior, self.means_weight, self.covars_prior, self.covars_weight
        return GaussianPrior(*(self._tensor(value) for value in named))

    def free_parameters(self) -> dict[str, int]:
        states, features = self.n_components, self.n_features
        return super().free_parameters() | {"m": states * features, "c": self.kind.free(states, features)}

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        observed = read_numbers(X, lengths, self.missing_values)
        if hasattr(self, "means_") and ("m" not in self.init_params or not fitting):
            check_features(observed, self.means_, "means_")
        return observed

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        if "m" in letters:
            self.means_ = self._draw_means(observed.seen, seed)
        if "c" in letters:
            spread = np.atleast_2d(np.cov(observed.seen.T)) if len(observed.seen) > 1 else 0.0
            covariance = spread + self.min_covar * np.eye(observed.values.shape[1])
            self._covars_ = self.kind.for_states(torch.from_numpy(covariance), self.n_components).numpy()

    def _draw_means(self, seen: Array, seed: Any) -> Array:
        """Cluster centres; if there are fewer observations than states, observations with added noise."""
        if len(seen) >= self.n_components:
            return KMeans(self.n_components, n_init=KMEANS_STARTS, random_state=seed).fit(seen).cluster_centers_
        if not len(seen):
            raise InputError("All observations in X are missing.")
        random = check_random_state(seed)
        shaken = random.normal(scale=seen.std(0) + np.sqrt(self.min_covar), size=(self.n_components, seen.shape[1]))
        return seen[np.arange(self.n_components) % len(seen)] + shaken

    def _emitter(self) -> Emitter:
        means, covars = self.means_, self.covars_
        return lambda state, random: random.multivariate_normal(means[state], covars[state])

    def _check(self) -> None:
        super()._check()
        self.means_ = np.asarray(self.means_, np.float64)
        if self.means_.ndim != 2 or len(self.means_) != self.n_components:
            raise InputError(f"means_ must have shape (n_components, n_features), not {self.means_.shape}.")
        self.n_features = self.means_.shape[1]
        self._check_covars()

    def _check_covars(self) -> Tensor:
        """The covariances as matrices [K, F, F]; raises if they do not have the shape of their type."""
        covars = self._covars_
        features = np.shape(self.means_)[1] if hasattr(self, "means_") else covars.shape[-1]
        shape = self.kind.shape(self.n_components, features)
        if covars.shape != shape:
            raise InputError(f"covars_ of type {self.covariance_type!r} must have shape {shape}, not {covars.shape}.")
        return self.kind.full(torch.from_numpy(covars), self.n_components, features)
