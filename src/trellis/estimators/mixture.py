"""HMM with emissions from mixtures of Gaussians."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from torch import Tensor

from trellis.emissions.covariances import COVARIANCES
from trellis.emissions.mixture import GaussianMixture, MixturePrior, covariance_shape
from trellis.errors import InputError
from trellis.estimators.arguments import documented
from trellis.estimators.base import BaseHMM
from trellis.estimators.fitted import Emitter, one_of
from trellis.estimators.gaussian import KMEANS_STARTS
from trellis.estimators.inputs import Array, Observations, check_features, read_measurements
from trellis.estimators.positional import positional

ROUNDING = 1e-10  # relative error allowed in eigenvalues


@documented(
    covariance_type='The form of a covariance matrix: "spherical", "diag", "full", or "tied" (one matrix per state).',
    covars_prior="Shape of an inverse gamma (spherical, diag) or scale of an inverse Wishart prior; None: no prior.",
    covars_weight="Scale of the inverse gamma prior, or degrees of freedom of the inverse Wishart prior.",
)
@positional(
    "n_components n_mix min_covar startprob_prior transmat_prior weights_prior means_prior means_weight covars_prior "
    "covars_weight algorithm covariance_type random_state n_iter tol verbose params init_params implementation"
)
@dataclass(repr=False, eq=False)
class GMMHMM(BaseHMM):
    """A hidden Markov model whose states emit vectors from mixtures of M normal distributions.

    Fitted attributes, all of which can be set by hand: `startprob_` [K], `transmat_` [K, K], `weights_` [K, M],
    `means_` [K, M, F], and `covars_`: spherical [K, M], diag [K, M, F], full [K, M, F, F], tied [K, F, F].

    >>> X = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0], [5], [20]], 20, 0)
    >>> trellis.GMMHMM(2, n_mix=2, random_state=0).fit(X).means_.shape
    (2, 2, 2)
    """

    n_mix: int = 1
    min_covar: float = 1e-3
    _: KW_ONLY
    weights_prior: Any = 1.0
    means_prior: Any = 0.0
    means_weight: Any = 0.0
    covars_prior: Any = None
    covars_weight: Any = None
    covariance_type: str = "diag"
    params: str = "stmcw"
    init_params: str = "stmcw"

    letters = BaseHMM.letters | {"m": "means_", "c": "covars_", "w": "weights_"}

    def _emission(self) -> GaussianMixture:
        trained = "".join(letter for letter in "wmc" if letter in self.params)
        weights, means, covars = (self._tensor(part) for part in (self.weights_, self.means_, self.covars_))
        return GaussianMixture(weights, means, covars, self.covariance_type, trained)

    def _adopt_emission(self, emission: GaussianMixture) -> None:
        parts = emission.weights, emission.means, emission.covars
        self.weights_, self.means_, self.covars_ = (part.cpu().numpy() for part in parts)

    def _covars_shape(self) -> tuple[int, ...]:
        kind = one_of(tuple(COVARIANCES), self.covariance_type, "covariance_type")
        return covariance_shape(kind, self.n_components, self.n_mix, self.n_features)

    def _emission_prior(self) -> MixturePrior:
        """The priors of the M-step. Those of the covariances are added to the scatter and the visits."""
        states, mixed, features = shape = self.n_components, self.n_mix, self.n_features
        kind, covars = self.covariance_type, self._covars_shape()
        no_prior: dict[str, tuple[float, float]] = {
            "full": (0.0, -(features + 2.0)), "tied": (0.0, -(mixed + features + 1.0)),
            "diag": (-1.5, 0.0), "spherical": (-(mixed + 2.0) / 2, 0.0),
        }  # fmt: skip
        degrees = {"full": (states, mixed), "tied": (states,)}.get(kind, covars)
        names = ("covars_prior", covars), ("covars_weight", degrees)
        prior, weight = (
            self._tensor(np.full(wanted, value)) if getattr(self, name) is None else self._prior_tensor(name, wanted)
            for (name, wanted), value in zip(names, no_prior[kind], strict=True)
        )
        if kind in ("full", "tied"):
            weight = weight.expand(degrees)[..., None, None] + 1 + features + (1 if kind == "full" else mixed)
            scatter, visits = prior.expand(covars).mT, weight
        else:
            scatter, visits = 2 * weight, 2 * prior + (3 if kind == "diag" else 2 + features)
        means_weight = self._prior_tensor("means_weight", (states, mixed)).expand(states, mixed).unsqueeze(-1)
        means = self._prior_tensor("means_prior", shape).expand(shape)
        weights = self._prior_tensor("weights_prior", (states, mixed)) - 1
        return MixturePrior(weights, means, means_weight, scatter, visits)

    def free_parameters(self) -> dict[str, int]:
        states, mixed, features = self._distributions(), self.n_mix, self.n_features
        per_state = 1 if self.covariance_type == "tied" else mixed
        covars = states * COVARIANCES[self.covariance_type].free(per_state, features)
        return super().free_parameters() | {"m": states * mixed * features, "c": covars, "w": states * (mixed - 1)}

    def _read(self, X: Any, lengths: Any, fitting: bool = False) -> Observations:
        observed = read_measurements(X, lengths, self.missing_values)
        if hasattr(self, "means_") and ("m" not in self.init_params or not fitting):
            check_features(observed, np.shape(self.means_)[-1], self)
        return observed

    def _named_statistics(self, statistics: Tensor) -> dict[str, Array]:
        """The statistics under hmmlearn's names. Unlike hmmlearn's, the sums of x exclude the prior of the means."""
        found, features = statistics.cpu().numpy(), self.n_features
        scatter = found[..., features + 1 :]
        if self.covariance_type in ("full", "tied"):
            scatter = scatter.reshape(*scatter.shape[:2], features, features)
        if self.covariance_type in ("spherical", "tied"):
            scatter = scatter.sum(-1) if self.covariance_type == "spherical" else scatter.sum(1)
        visits = found[..., 0]
        return {"post_mix_sum": visits, "post_sum": visits.sum(1), "m_n": found[..., 1 : features + 1], "c_n": scatter}

    def _unnamed_statistics(self, stats: dict[str, Any]) -> Tensor:
        states, mixed, features = self.n_components, self.n_mix, self.n_features
        scatter = np.asarray(stats["c_n"])
        if self.covariance_type == "spherical":
            scatter = np.repeat(scatter[..., None] / features, features, -1)
        if self.covariance_type == "tied":
            scatter = np.repeat(scatter[:, None] / mixed, mixed, 1)
        parts = stats["post_mix_sum"][..., None], stats["m_n"], scatter.reshape(states, mixed, -1)
        return self._tensor(np.concatenate(parts, -1))

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        """Uniform weights, means from k-means in two levels, and the covariance of the data for every component."""
        seen, shape = observed.seen, (self.n_components, self.n_mix)
        self.n_features = observed.values.shape[1]
        if not len(seen):
            raise InputError("All observations in X are missing.")
        spread = np.atleast_2d(np.cov(seen.T)) if len(seen) > 1 else 0.0
        covariance = spread + self.min_covar * np.eye(self.n_features)
        if "w" in letters:
            self.weights_ = np.full(shape, 1 / self.n_mix)
        if "m" in letters:
            self.means_ = self._draw_means(seen, covariance, seed)
        if "c" in letters:
            given = {"diag": np.diag(covariance), "spherical": covariance.mean()}.get(self.covariance_type, covariance)
            self.covars_ = np.broadcast_to(given, self._covars_shape()).copy()

    def _emission_seed(self, seed: Any, random: np.random.RandomState) -> Any:
        """The seed itself: every k-means clustering starts from it, as in hmmlearn."""
        return seed

    def _draw_means(self, seen: Array, covariance: Array, seed: Any) -> Array:
        """Cluster the data by state, and the data of each state by component. If a state has too few observations, its
        components have random means."""
        if len(seen) < self.n_components:
            normal = check_random_state(seed).multivariate_normal
            return normal(seen.mean(0), covariance, size=(self.n_components, self.n_mix))
        states = KMeans(self.n_components, n_init=KMEANS_STARTS, random_state=seed)
        labels, means = states.fit_predict(seen), []
        for state in range(self.n_components):
            cluster = seen[labels == state]
            if len(cluster) >= self.n_mix:
                mixture = KMeans(self.n_mix, n_init=KMEANS_STARTS, random_state=seed).fit(cluster)
                means.append(mixture.cluster_centers_)
            else:
                centre = states.cluster_centers_.mean(0)
                means.append(check_random_state(seed).multivariate_normal(centre, covariance, size=self.n_mix))
        return np.stack(means)

    def _moments(self) -> tuple[Array, Array]:
        matched = self._emission().matched()
        return matched.means.cpu().numpy(), matched.covars.cpu().numpy()

    def _emitter(self) -> Emitter:
        components, mixed = self._emission().components(), self.n_mix
        means = components.means.cpu().numpy()
        covars = components.kind.full(components.covars, *components.means.shape).cpu().numpy()

        def emit(state: int, random: np.random.RandomState) -> Array:
            chosen = state * mixed + random.choice(mixed, p=self.weights_[state])
            return random.multivariate_normal(means[chosen], covars[chosen])

        return emit

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.n_mix < 1:
            raise InputError(f"n_mix is {self.n_mix}: it must be at least 1.")
        one_of(tuple(COVARIANCES), self.covariance_type, "covariance_type")

    def _check(self) -> None:
        super()._check()
        self.means_, self.covars_ = (np.asarray(part, np.float64) for part in (self.means_, self.covars_))
        if self.means_.ndim != 3 or self.means_.shape[:2] != (self.n_components, self.n_mix):
            raise InputError(f"means_ must have shape (n_components, n_mix, n_features), not {self.means_.shape}.")
        self.n_features = self.means_.shape[2]
        self._check_distributions("weights_", (self.n_components, self.n_mix))
        if self.covars_.shape != (shape := self._covars_shape()):
            kind = self.covariance_type
            raise InputError(f"covars_ of type {kind!r} must have shape {shape}, not {self.covars_.shape}.")
        if self.covariance_type in ("spherical", "diag"):
            smallest = self.covars_.min()
        else:
            if not np.allclose(self.covars_, self.covars_.swapaxes(-1, -2)):
                raise InputError("covars_ must be symmetric.")
            smallest = np.linalg.eigvalsh(self.covars_).min() + ROUNDING * abs(self.covars_).max()
        if not smallest >= 0:
            raise InputError("covars_ must be positive definite.")
