"""HMM with Gaussian emissions."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.emissions.covariances import COVARIANCES, Covariance, GaussianPrior
from trellis.emissions.gaussian import Gaussian
from trellis.errors import InputError
from trellis.estimators.arguments import documented
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import Emitter, one_of
from trellis.estimators.inputs import Array, Observations, check_features, read_measurements
from trellis.estimators.positional import positional

KMEANS_STARTS = 10


class GaussianStates(BaseEstimator):
    """The base class of HMMs with Gaussian emissions: `means_` [K, F], `covars_`, input and samples."""

    covariance_type: str
    n_features: int

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
        matrices = self.kind.full(torch.from_numpy(self._covars_), self.n_components, self._check_covars())
        if not torch.allclose(matrices, matrices.mT) or not bool((torch.linalg.eigvalsh(matrices) > 0).all()):
            raise InputError("covars_ must be symmetric and positive definite.")

    def _emission(self) -> Gaussian:
        trained = "".join(letter for letter in "mc" if letter in self.params)
        origin = None if self._origin is None else self._tensor(self._origin)
        return Gaussian(self._tensor(self.means_), self._tensor(self._covars_), self.covariance_type, trained, origin)

    def _moments(self) -> tuple[Array, Array]:
        return self.means_, self.covars_

    def _hold_origin(self) -> None:
        self._origin = self.means_.copy()

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        observed = read_measurements(X, lengths, self.missing_values)
        if hasattr(self, "means_") and ("m" not in self.init_params or not fitting):
            check_features(observed, np.shape(self.means_)[-1], self)
        return observed

    def _named_statistics(self, statistics: Tensor) -> dict[str, Array]:
        """hmmlearn's sums of x, computed from the sums of x - origin."""
        gaussian = self._gaussian()
        visits, first, second = gaussian.moments(statistics, -gaussian.origin)
        name = "obs**2" if self.covariance_type in ("diag", "spherical") else "obs*obs.T"
        found = {"post": visits[:, 0], "obs": first, name: second}
        return {name: value.cpu().numpy() for name, value in found.items()}

    def _unnamed_statistics(self, stats: dict[str, Any]) -> Tensor:
        gaussian = self._gaussian()
        products = stats["obs*obs.T" if "obs*obs.T" in stats else "obs**2"].reshape(self.n_components, -1)
        given = self._tensor(np.column_stack([stats["post"], stats["obs"], products]))
        return torch.cat([part.flatten(1) for part in gaussian.moments(given, gaussian.origin)], 1)

    def _gaussian(self) -> Gaussian:
        """The emission that defines the origin of the statistics."""
        return self._training_parts().emission

    def _emitter(self) -> Emitter:
        means, covars = self.means_, self.covars_
        return lambda state, random: random.multivariate_normal(means[state], covars[state])

    def _cluster(self, seen: Array, seed: Any, smallest: float) -> tuple[Array, Array]:
        """Cluster centres, and the number of observations of each cluster. With fewer observations than states, the
        centres are observations with noise."""
        states = self.n_components
        if len(seen) >= states:
            found = KMeans(states, n_init=KMEANS_STARTS, random_state=seed).fit(seen)
            return found.cluster_centers_, np.bincount(found.labels_, minlength=states).clip(1).astype(np.float64)
        if not len(seen):
            raise InputError("All observations in X are missing.")
        shaken = check_random_state(seed).normal(scale=seen.std(0) + np.sqrt(smallest), size=(states, seen.shape[1]))
        return seen[np.arange(states) % len(seen)] + shaken, np.full(states, len(seen) / states)

    def _initial_covars(self, seen: Array, smallest: float) -> Array:
        """The covariance of the data for every state."""
        spread = np.atleast_2d(np.cov(seen.T)) if len(seen) > 1 else 0.0
        covariance = spread + smallest * np.eye(seen.shape[1])
        return self.kind.for_states(torch.from_numpy(covariance), self.n_components).numpy()

    def _check_covars(self) -> int:
        """The number of features; raises if the covariances do not have the shape of their type."""
        covars = self._covars_
        features = np.shape(self.means_)[1] if hasattr(self, "means_") else covars.shape[-1]
        shape = self.kind.shape(self.n_components, features)
        if covars.shape != shape:
            raise InputError(f"covars_ of type {self.covariance_type!r} must have shape {shape}, not {covars.shape}.")
        return int(features)


@documented()
@positional(
    "n_components covariance_type min_covar startprob_prior transmat_prior means_prior means_weight covars_prior "
    "covars_weight algorithm random_state n_iter tol verbose params init_params implementation"
)
@dataclass(repr=False, eq=False)
class GaussianHMM(GaussianStates, BaseHMM):
    """A hidden Markov model whose states emit vectors from normal distributions.

    Fitted attributes, all of which can be set by hand: `startprob_` [K], `transmat_` [K, K], `means_` [K, F] and
    `covars_`. Reading `covars_` always returns matrices [K, F, F]. To set it, assign an array in the shape of
    `covariance_type`: spherical [K], diag [K, F], full [K, F, F], tied [F, F].

    >>> X = np.concatenate([np.full((20, 1), level) for level in (0.0, 5.0)]) + 0.1 * np.sin(np.arange(40))[:, None]
    >>> np.sort(trellis.GaussianHMM(2, random_state=0).fit(X).means_[:, 0]).round()
    array([0., 5.])
    """

    covariance_type: str = "diag"
    min_covar: float = 1e-3
    _: KW_ONLY
    means_prior: Any = 0.0
    means_weight: Any = 0.0
    covars_prior: Any = 1e-2
    covars_weight: Any = 1.0
    params: str = "stmc"
    init_params: str = "stmc"

    letters = BaseHMM.letters | {"m": "means_", "c": "_covars_"}

    def _adopt_emission(self, emission: Gaussian) -> None:
        self.means_, self._covars_ = emission.means.cpu().numpy(), emission.covars.cpu().numpy()

    def _emission_prior(self) -> GaussianPrior | None:
        shape = self.n_components, self.n_features
        covars = self.kind.shape(*shape) if self.covariance_type != "spherical" else shape
        shapes = {"means_prior": shape, "means_weight": shape, "covars_prior": covars, "covars_weight": ()}
        return GaussianPrior(*(self._prior_tensor(name, shape) for name, shape in shapes.items()))

    def free_parameters(self) -> dict[str, int]:
        states, features = self._distributions(), self.n_features
        return super().free_parameters() | {"m": states * features, "c": self.kind.free(states, features)}

    def _emission_attributes(self) -> list[str]:
        return [name for name in super()._emission_attributes() if name != "_covars_" or self.kind.by_state]

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.frozen_emissions is not None and not self.kind.by_state:
            raise InputError("frozen_emissions needs a covariance for each state; covariance_type 'tied' has only one.")

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        if "m" in letters:
            self.means_, _ = self._cluster(observed.seen, seed, self.min_covar)
        if "c" in letters:
            self._covars_ = self._initial_covars(observed.seen, self.min_covar)

    def _check(self) -> None:
        super()._check()
        self.means_ = np.asarray(self.means_, np.float64)
        if self.means_.ndim != 2 or len(self.means_) != self.n_components:
            raise InputError(f"means_ must have shape (n_components, n_features), not {self.means_.shape}.")
        self.n_features = self.means_.shape[1]
        self._check_covars()
