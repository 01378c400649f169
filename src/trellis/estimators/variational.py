"""HMMs trained by variational inference, with posteriors over their parameters."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Number
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils import check_random_state

from trellis.emissions import Gaussian
from trellis.emissions.variational import DirichletCategorical, NormalWishart, WishartGaussian
from trellis.errors import InputError
from trellis.estimators.arguments import VARIATIONAL, documented
from trellis.estimators.base import BaseHMM
from trellis.estimators.blocks import Block
from trellis.estimators.categorical import CategoricalStates
from trellis.estimators.gaussian import GaussianStates
from trellis.estimators.inputs import Array, Observations
from trellis.estimators.positional import positional
from trellis.estimators.topology import SETTINGS
from trellis.learning.variational import VariationalParts
from trellis.parts import Parts, Prior
from trellis.types import Counts

VARIANCE = 1e-3  # added to the initial variances; the default scale of their prior


@dataclass(repr=False, eq=False)
class VariationalHMM(BaseHMM):
    """An HMM with Dirichlet posteriors over its start and transitions; `monitor_` records the lower bound.

    `startprob_` and `transmat_` are posterior means. `score`, `predict` and `sample` use these means."""

    _: KW_ONLY
    startprob_prior: Any = None
    transmat_prior: Any = None
    n_iter: int = 100
    tol: float = 1e-6

    letters = {"s": "startprob_posterior_", "t": "transmat_posterior_"}  # noqa: RUF012
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {
        "s": ("startprob_posterior_", "startprob_prior_"),
        "t": ("transmat_posterior_", "transmat_prior_"),
    }  # what a letter of `init_params` initialises

    def _emission_posterior(self) -> Any:
        """The emission with its posterior and prior."""
        raise NotImplementedError

    def _training_parts(self) -> VariationalParts:
        names = "startprob_posterior_", "transmat_posterior_", "startprob_prior_", "transmat_prior_"
        start, transition, *priors = (self._tensor(getattr(self, name)) for name in names)
        return VariationalParts(start, transition, self._emission_posterior(), (priors[0], priors[1]))

    def _adopt(self, parts: Parts) -> None:
        assert isinstance(parts, VariationalParts)
        self.startprob_posterior_, self.transmat_posterior_ = (one.cpu().numpy() for one in parts.posteriors)
        super()._adopt(parts.mean())
        self._adopt_emission(parts.emission)

    def _expect(self, models: Sequence[Parts], blocks: Sequence[Block]) -> list[Counts]:
        """The E-step, with the lower bound in place of the log-likelihood."""
        found = zip(models, super()._expect(models, blocks), strict=True)
        return [one._replace(log_likelihood=one.log_likelihood + self._bound(parts)) for parts, one in found]

    def _bound(self, parts: Any) -> float:
        return parts.bound()

    def _maximise(self, models: Sequence[Parts], counts: Sequence[Counts], prior: Prior) -> list[Parts]:
        return [parts.maximised(found, prior) for parts, found in zip(models, counts, strict=True)]

    def _prior(self) -> Prior:
        """The priors of the M-step: None for parameters not trained, else 0. The parts hold the actual priors."""
        start, transition = (0.0 if letter in self.params else None for letter in "st")
        return Prior(start, transition)

    def _log_likelihood(self, parts: Parts, blocks: Sequence[Block]) -> float:
        return super()._log_likelihood(parts.mean() if isinstance(parts, VariationalParts) else parts, blocks)

    def _reorder(self, order: Array) -> Self:
        parts = self._training_parts()
        ids = torch.from_numpy(order).to(parts.start.device)
        (start, moves), (prior, prior_moves) = parts.posteriors, parts.priors
        priors = prior[ids], prior_moves[ids][:, ids]
        self.startprob_prior_, self.transmat_prior_ = (one.cpu().numpy() for one in priors)
        self._adopt(VariationalParts(start[ids], moves[ids][:, ids], parts.emission.take(ids), priors))
        self._forget()
        return self

    def _check_settings(self) -> None:
        super()._check_settings()
        for name in (*SETTINGS, *(["sticky"] if self.sticky else [])):
            if getattr(self, name) is not None:
                raise InputError(
                    f"{name} does not apply to {type(self).__name__}; set its priors, or use the class in trellis.hmm."
                )

    def _letters_to_draw(self) -> str:
        return "".join(c for c, names in self.attributes.items() if any(self._needs_init(c, name) for name in names))

    def _draw(self, letters: str, observed: Observations, seed: Any) -> None:
        random, states = check_random_state(seed), self.n_components
        even, shape = np.full(states, 1 / states), (states, states)
        if "s" in letters:
            self.startprob_prior_ = self._full("startprob_prior", (states,), 1 / states)
            self.startprob_posterior_ = random.dirichlet(even) * len(observed.lengths)
        if "t" in letters:
            self.transmat_prior_ = self._full("transmat_prior", shape, 1 / states)
            self.transmat_posterior_ = random.dirichlet(even, size=states) * (observed.lengths.sum() / states)
        self._draw_emission(letters, observed, seed)

    def _full(self, name: str, shape: tuple[int, ...], otherwise: Any) -> Array:
        """The argument `name`, a prior, as an array of the given shape; if it is None, `otherwise` is its value."""
        value = otherwise if getattr(self, name) is None else self._prior_tensor(name, shape).cpu().numpy()
        return np.broadcast_to(value, shape).astype(np.float64)

    def _check(self) -> None:
        states = self.n_components
        shapes = {"startprob": (states,), "transmat": (states, states)} | self._emission_shapes()
        for name, shape in shapes.items():
            for attribute in (f"{name}_prior_", f"{name}_posterior_"):
                self._check_shape(attribute, shape)
        if hasattr(self, "startprob_"):
            super()._check()

    def _emission_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the priors and posteriors of the emission."""
        return {}

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Convert an attribute to an array; raises if its shape is not `shape`."""
        try:
            value = np.asarray(getattr(self, name), np.float64)
        except (AttributeError, ValueError) as error:
            raise InputError(f"{name} must be an array of shape {shape}.") from error
        if value.shape != shape:
            raise InputError(f"{name} must have the shape {shape}, not {value.shape}.")
        setattr(self, name, value)


@documented(
    **VARIATIONAL,
    emissionprob_prior="Parameters of the Dirichlet priors of the emissions; None: 1 / n_features.",
)
@positional(
    "n_components startprob_prior transmat_prior emissionprob_prior n_features algorithm random_state n_iter tol "
    "verbose params init_params implementation"
)
@dataclass(repr=False, eq=False)
class VariationalCategoricalHMM(CategoricalStates, VariationalHMM):
    """A CategoricalHMM trained by variational inference.

    The fitted attributes `startprob_posterior_` [K], `transmat_posterior_` [K, K] and `emissionprob_posterior_` [K, V]
    are the parameters of Dirichlet posteriors. The parameters of their priors are `startprob_prior_` etc., and the
    posterior means are `startprob_` etc.

    >>> X = np.array([[0], [1], [0], [1], [2], [2]] * 5)
    >>> trellis.VariationalCategoricalHMM(2, random_state=0).fit(X).emissionprob_posterior_.shape
    (2, 3)
    """

    _: KW_ONLY
    emissionprob_prior: Any = None
    n_features: int | None = None
    params: str = "ste"
    init_params: str = "ste"

    letters = VariationalHMM.letters | {"e": "emissionprob_posterior_"}
    attributes: ClassVar[dict[str, tuple[str, ...]]] = VariationalHMM.attributes | {"e": ("emissionprob_posterior_",)}

    def _set_n_features(self, found: int) -> None:
        """Set the number of symbols: the given number, else the previous one if the emission is kept, else that of the
        data."""
        kept = "e" not in self.init_params and self.n_features is not None
        if not self._given("n_features") and not kept:
            self._infer("n_features", found)

    def _emission_posterior(self) -> DirichletCategorical:
        return DirichletCategorical(
            *(self._tensor(p).T for p in (self.emissionprob_posterior_, self.emissionprob_prior_))
        )

    def _adopt_emission(self, emission: Any) -> None:
        if isinstance(emission, DirichletCategorical):
            self.emissionprob_posterior_ = np.ascontiguousarray(emission.posterior.T.cpu().numpy())
            totals = self.emissionprob_posterior_.sum(1, keepdims=True)
            self.emissionprob_ = self.emissionprob_posterior_ / totals

    def _prior(self) -> Prior:
        return super()._prior()._replace(emission=0.0 if "e" in self.params else None)

    def free_parameters(self) -> dict[str, int]:
        return super().free_parameters() | {"e": self.n_components * ((self.n_features or 1) - 1)}

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        if "e" not in letters:
            return
        shape = self.n_components, self.n_features or 1
        self.emissionprob_prior_ = self._full("emissionprob_prior", shape, 1 / shape[1])
        random = check_random_state(seed)
        same = (self.emissionprob_prior_ == self.emissionprob_prior_[0]).all()
        draws = (
            random.dirichlet(self.emissionprob_prior_[0], size=shape[0])
            if same
            else np.stack([random.dirichlet(row) for row in self.emissionprob_prior_])
        )
        self.emissionprob_posterior_ = draws * observed.lengths.sum() / self.n_components

    def _emission_shapes(self) -> dict[str, tuple[int, ...]]:
        if self.n_features is None:
            self._infer("n_features", np.atleast_2d(self.emissionprob_posterior_).shape[1])
        return {"emissionprob": (self.n_components, self.n_features or 1)}


@documented(
    **VARIATIONAL,
    means_prior="Mean of the normal prior of the means; None: the mean of the data.",
)
@positional(
    "n_components covariance_type startprob_prior transmat_prior means_prior beta_prior dof_prior scale_prior "
    "algorithm random_state n_iter tol verbose params init_params implementation"
)
@dataclass(repr=False, eq=False)
class VariationalGaussianHMM(GaussianStates, VariationalHMM):
    """A GaussianHMM trained by variational inference.

    Fitted attributes:

    - The posterior of the means: `means_posterior_` [K, F] and `beta_posterior_` [K].
    - The posterior of the precisions, a Wishart distribution: `dof_posterior_` [K] (a single number if the covariance
      is tied), and `scale_posterior_`: spherical [K], diag [K, F], full [K, F, F], tied [F, F].

    The attributes of the priors have `_prior_` instead of `_posterior_` in their names. `means_` are the posterior
    means; `covars_` are the inverses of the expected precisions.

    >>> X = np.concatenate([np.full((20, 1), level) for level in (0.0, 5.0)]) + 0.1 * np.sin(np.arange(40))[:, None]
    >>> np.sort(trellis.VariationalGaussianHMM(2, random_state=0).fit(X).means_[:, 0]).round()
    array([0., 5.])
    """

    covariance_type: str = "full"
    _: KW_ONLY
    means_prior: Any = None
    beta_prior: Any = None
    dof_prior: Any = None
    scale_prior: Any = None
    params: str = "stmc"
    init_params: str = "stmc"

    letters = VariationalHMM.letters | {"m": "means_posterior_", "c": "scale_posterior_"}
    attributes: ClassVar[dict[str, tuple[str, ...]]] = VariationalHMM.attributes | {
        "m": ("means_prior_", "means_posterior_", "beta_prior_", "beta_posterior_"),
        "c": ("dof_prior_", "dof_posterior_", "scale_prior_", "scale_posterior_"),
    }

    @property
    def means_(self) -> Array:
        """The posterior mean of the means."""
        return self.means_posterior_

    def _gaussian(self) -> Gaussian:
        return self._training_parts().emission.gaussian

    def _emission_posterior(self) -> WishartGaussian:
        posterior, prior = (
            NormalWishart(
                *(self._tensor(getattr(self, f"{name}_{which}_")) for name in ("means", "beta", "dof", "scale"))
            )
            for which in ("posterior", "prior")
        )
        trained = "".join(letter for letter in "mc" if letter in self.params)
        return WishartGaussian(posterior, prior, self.covariance_type, trained)

    def _adopt_emission(self, emission: Any) -> None:
        if isinstance(emission, WishartGaussian):
            found = (part.cpu().numpy() for part in emission.posterior)
            self.means_posterior_, self.beta_posterior_, dof, self.scale_posterior_ = found
            self.dof_posterior_ = float(dof) if self.covariance_type == "tied" else dof
            self._covars_ = emission.gaussian.covars.cpu().numpy()

    def free_parameters(self) -> dict[str, int]:
        states, features = self.n_components, self.n_features
        dofs = 1 if self.covariance_type == "tied" else states
        added = {"m": states * features + states, "c": dofs + self.kind.free(states, features)}
        return super().free_parameters() | added

    def _draw_emission(self, letters: str, observed: Observations, seed: Any) -> None:
        """Initialise means and counts from clusters, and the covariance of every state from all data."""
        if not set("mc") & set(letters):
            return
        seen, shape = observed.seen, (self.n_components, observed.values.shape[1])
        self.n_features = shape[1]
        tied = self.covariance_type == "tied"
        centres, counts = self._cluster(seen, seed, VARIANCE)
        if "m" in letters:
            self.means_prior_ = self._full("means_prior", shape, seen.mean(0))
            self.beta_prior_ = self._full("beta_prior", shape[:1], 1.0)
            self.means_posterior_, self.beta_posterior_ = centres, counts
        if "c" in letters:
            self.dof_prior_ = self._full("dof_prior", () if tied else shape[:1], shape[1])
            counts = np.maximum(
                counts, shape[1]
            )  # a Wishart distribution has at least as many degrees of freedom as features
            self.dof_posterior_ = counts.sum() if tied else counts
            covars = self._initial_covars(seen, VARIANCE)
            smallest = np.eye(shape[1]) if self.covariance_type in ("full", "tied") else 1.0
            self.scale_prior_ = self._full("scale_prior", covars.shape, VARIANCE * smallest)
            dof = counts.sum() if tied else counts.reshape(-1, *[1] * (covars.ndim - 1))
            self.scale_posterior_, self._covars_ = covars * dof, covars

    def _check_settings(self) -> None:
        super()._check_settings()
        assert self.kind

    def _emission_shapes(self) -> dict[str, tuple[int, ...]]:
        self.n_features = np.shape(self.means_posterior_)[-1] if np.ndim(self.means_posterior_) == 2 else 1
        shape = self.n_components, self.n_features
        tied = self.covariance_type == "tied"
        for name in ("dof_prior_", "dof_posterior_") if tied else ():
            if isinstance(value := getattr(self, name), np.ndarray) and value.ndim == 0:
                setattr(self, name, float(value))
            if not isinstance(getattr(self, name), Number):
                raise InputError(f"{name} must be a number.")
        covars = self.kind.shape(*shape)
        dofs = {} if tied else {"dof": shape[:1]}
        return {"means": shape, "beta": shape[:1], "scale": covars} | dofs
