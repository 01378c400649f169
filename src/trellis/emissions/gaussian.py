"""Gaussian emissions, with covariances that are spherical, diagonal, full, or full and shared by all states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.emissions.base import Emission, Vectors
from trellis.errors import InputError
from trellis.types import Potentials

JITTER = 1e-7  # added to the diagonal of a covariance that is not quite positive definite
SMALLEST_WEIGHT = 1e-5  # minimum visits for estimating a variance
FAR = 1e6  # squared distance between states, in variances, beyond which each state's moments have their own origin
CANCELLED = 1e-10  # scatter / second moment below which a variance is lost to rounding
SMALL = 1 << 14  # in arrays of up to this many numbers, torch's fixed cost per operation dominates
KEPT = 1 << 20  # maximum number of monomials that are kept
ACCURATE = 1e4  # squared distance from the origin, in variances, up to which densities from monomials are accurate
LOG_TWO_PI = math.log(2 * math.pi)
Array = Any  # a tensor, or a NumPy array of the same shape: the M-step has the same formulas for both


class GaussianPrior(NamedTuple):
    """A normal prior on the means, and an inverse gamma (diagonal) or inverse Wishart (full) prior on the
    covariances."""

    mean: Array
    mean_weight: Array
    covar: Array
    covar_weight: Array


class Moments(NamedTuple):
    """Expected visits [K, 1], and expected sums of x - origin [K, F] and of its squares or products [K, ...]."""

    visits: Array
    first: Array
    second: Array


class Covariance(ABC):
    """A parameterisation of the covariances of K states over F features.

    The methods of the M-step accept tensors or NumPy arrays."""

    by_state = True  # whether each state has its own

    @abstractmethod
    def shape(self, states: int, features: int) -> tuple[int, ...]:
        """The shape of the covariance parameters."""

    @abstractmethod
    def free(self, states: int, features: int) -> int:
        """The number of free parameters."""

    @abstractmethod
    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        """The covariances of all states from one matrix [F, F]."""

    @abstractmethod
    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        """The covariances as matrices [K, F, F]."""

    @abstractmethod
    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        """log N(x; mean_z, covar_z): [N, F] -> [N, K]."""

    @abstractmethod
    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        """log N(x; mean_z, covar_z) as coefficients of the monomials of x, [K, D], and the largest precision, as
        arrays. Raises LinAlgError if a covariance is not positive definite."""

    @abstractmethod
    def variances(self, covars: Array) -> Array:
        """The variances of the features."""

    @abstractmethod
    def second(self, x: Array) -> Array:
        """Squares or products of x: [F, N] -> [D, N]."""

    @abstractmethod
    def scatter(self, moments: Moments, shift: Array) -> Array:
        """The expected sums of squares or products around the means, which are origin + shift [K, F]: [K, ...]."""

    @abstractmethod
    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        """MAP covariances, given the scatter, the visits [K, 1], the prior, and `off` [K, F], the means minus those of
        the prior."""

    def of_states(self, states: Array) -> Array:
        """Mask of the covariances of some states [K] bool, broadcastable to their shape."""
        return states.reshape(-1, *[1] * (len(self.shape(1, 1)) - 1))


class Diagonal(Covariance):
    """Diagonal covariances: variances [K, F]."""

    def shape(self, states: int, features: int) -> tuple[int, ...]:
        return states, features

    def free(self, states: int, features: int) -> int:
        return math.prod(self.shape(states, features))

    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        return covariance.diagonal().repeat(states, 1)

    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        return torch.diag_embed(covars)

    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        variances = covars.clamp(min=torch.finfo(covars.dtype).tiny)
        squares = x.new_zeros(len(x), len(means))
        for feature, mean, variance in zip(x.T, means.T, variances.T, strict=True):
            squares += (feature[:, None] - mean).square() / variance
        return -0.5 * (x.shape[1] * LOG_TWO_PI + variances.log().sum(-1) + squares)

    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        variances = np.maximum(covars, np.finfo(np.float64).tiny)
        precisions = 1 / variances
        linear = precisions * means
        constant = np.add.reduce(np.log(variances) + linear * means, -1, keepdims=True) + means.shape[1] * LOG_TWO_PI
        return np.concatenate([-0.5 * constant, linear, -0.5 * precisions], 1), np.maximum.reduce(precisions, None)

    def variances(self, covars: Array) -> Array:
        return covars

    def second(self, x: Array) -> Array:
        return x * x

    def scatter(self, moments: Moments, shift: Array) -> Array:
        visits, first, second = moments
        return second + shift * (shift * visits - 2 * first)

    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        weight = at_least(prior.covar_weight - 1, 0) + visits
        return (prior.covar + scatter + prior.mean_weight * off * off) / at_least(weight, SMALLEST_WEIGHT)


class Spherical(Diagonal):
    """One variance per state, [K]."""

    def shape(self, states: int, features: int) -> tuple[int, ...]:
        return (states,)

    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        """The mean of all entries, as in hmmlearn."""
        return covariance.mean().repeat(states)

    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        return torch.diag_embed(covars[:, None].expand(states, features))

    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        return super().log_density(x, means, covars[:, None].expand_as(means))

    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        return super().coefficients(means, np.broadcast_to(covars[:, None], means.shape))

    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        return super().estimate(scatter, visits, off, prior).mean(-1)


class Full(Covariance):
    """Full covariance matrices [K, F, F]."""

    def shape(self, states: int, features: int) -> tuple[int, ...]:
        return states, features, features

    def free(self, states: int, features: int) -> int:
        return states * features * (features + 1) // 2

    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        return covariance.repeat(states, 1, 1)

    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        return covars

    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        root = cholesky(covars)
        distances = torch.linalg.solve_triangular(root, x.T - means[..., None], upper=False).square().sum(-2)
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (x.shape[1] * LOG_TWO_PI + log_det + distances.T)

    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        inverse = np.linalg.inv(np.linalg.cholesky(covars))
        precisions = inverse.swapaxes(-1, -2) @ inverse
        linear = (precisions @ means[..., None])[..., 0]
        squares = precisions.reshape(len(covars), -1)
        diagonal = np.add.reduce(np.log(self.variances(inverse)), -1, keepdims=True)
        constant = np.add.reduce(linear * means, -1, keepdims=True) - 2 * diagonal + means.shape[1] * LOG_TWO_PI
        found = (
            np.broadcast_arrays(-0.5 * constant, means[:, :1])[0],
            linear,
            np.broadcast_to(-0.5 * squares, (len(means), squares.shape[1])),
        )
        return np.concatenate(found, 1), np.maximum.reduce(np.add.reduce(self.variances(precisions), -1))

    def second(self, x: Array) -> Array:
        return (x[:, None] * x).reshape(len(x) ** 2, -1)

    def variances(self, covars: Array) -> Array:
        features = covars.shape[-1]
        return covars.reshape(*covars.shape[:-2], features**2)[..., :: features + 1]

    def scatter(self, moments: Moments, shift: Array) -> Array:
        visits, first, second = moments
        cross = outer(first, shift)
        return second.reshape(*shift.shape, -1) - cross - cross.mT + outer(shift, shift) * visits[:, None]

    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        weight = at_least(prior.covar_weight - off.shape[1], 0) + visits[:, None]
        total = prior.covar + scatter + outer(prior.mean_weight * off, off)
        return total / at_least(weight, SMALLEST_WEIGHT)


class Tied(Full):
    """One matrix [F, F] shared by all states."""

    by_state = False

    def shape(self, states: int, features: int) -> tuple[int, ...]:
        return features, features

    def free(self, states: int, features: int) -> int:
        return features * (features + 1) // 2

    def for_states(self, covariance: Tensor, states: int) -> Tensor:
        return covariance

    def full(self, covars: Tensor, states: int, features: int) -> Tensor:
        return covars.expand(states, features, features)

    def log_density(self, x: Tensor, means: Tensor, covars: Tensor) -> Tensor:
        return super().log_density(x, means, covars.expand(len(means), *covars.shape))

    def coefficients(self, means: Array, covars: Array) -> tuple[Array, float]:
        return super().coefficients(means, covars[None])

    def of_states(self, states: Array) -> Array:
        return states.any()

    def estimate(self, scatter: Array, visits: Array, off: Array, prior: GaussianPrior) -> Array:
        weight = at_least(prior.covar_weight - off.shape[1], 0) + visits.sum()
        total = prior.covar + (scatter + outer(prior.mean_weight * off, off)).sum(0)
        return total / at_least(weight, SMALLEST_WEIGHT)


COVARIANCES: dict[str, Covariance] = {
    "spherical": Spherical(),
    "diag": Diagonal(),
    "full": Full(),
    "tied": Tied(),
}


class Basis:
    """The monomials of observations around an origin [1, F]. They are computed once for each tensor of observations."""

    def __init__(self, kind: Covariance, origin: Tensor) -> None:
        self.kind, self.origin = kind, origin
        self.known: list[tuple[Tensor, Array, float]] = []

    def of(self, x: Tensor) -> tuple[Array, float]:
        """1, d, and the squares or products of d = x - origin: [N, F] -> [D, N]; and the largest squared norm of d."""
        for given, monomials, reach in self.known:
            if given is x:
                return monomials, reach
        d = x.numpy().T - self.origin.numpy().T
        monomials, reach = self.monomials(d), np.maximum.reduce(np.add.reduce(d * d), initial=0.0)
        self.known.append((x, monomials, reach))
        return monomials, reach

    def monomials(self, d: Array) -> Array:
        """1, d, and the squares or products of d: [F, N] -> [D, N]; arrays or tensors."""
        library: Any = np if isinstance(d, np.ndarray) else torch
        return library.concat([library.ones_like(d[:1]), d, self.kind.second(d)])


class Gaussian(Emission):
    """p(x | z) = N(x; means[z], covariance of z): means [K, F], covars in the shape of their type.

    The statistics [K, D] are expected sums of 1, d, and the squares or products of d, where d = x - origin. The origin
    avoids cancellation if the data have a large offset; by default, it is derived from the means. Statistics with the
    same origin can be added. `trained` lists what the M-step estimates: m (means), c (covariances)."""

    def __init__(
        self,
        means: Tensor,
        covars: Tensor,
        kind: str,
        trained: str = "mc",
        origin: Tensor | None = None,
        apart: bool = False,
        basis: Basis | None = None,
    ) -> None:
        self.means, self.covars, self.num_states = means, covars, len(means)
        self.kind_name, self.kind, self.trained = kind, COVARIANCES[kind], trained
        self.given_origin, self.apart, self.given_basis = origin, apart, basis

    @property
    def per_state(self) -> dict[str, int]:
        """The tensors with an entry for each state; a tied covariance has none."""
        return {"means": 0} | ({"covars": 0} if self.kind.by_state else {})

    @cached_property
    def origin(self) -> Tensor:
        """The origin of the moments: [1, F], or [K, F] if the states are many standard deviations apart."""
        if self.given_origin is not None:
            return self.given_origin
        means, covars = light(self.means, self.covars)
        smallest = FAR * self.kind.variances(covars).min()
        given, apart = self.given_basis, self.apart
        if given is not None and not apart and ((means - given.origin.numpy()) ** 2).max() <= smallest:
            return given.origin
        centre = means.sum(0)[None] / len(means)
        return self.means if apart or ((means - centre) ** 2).max() > smallest else as_tensor(centre)

    @cached_property
    def basis(self) -> Basis | None:
        """The monomials around the origin; None on a GPU, with gradients, or if each state has its own origin."""
        if self.given_basis is not None and self.origin is self.given_basis.origin:
            return self.given_basis
        plain = isinstance(light(self.origin, self.means, self.covars)[0], np.ndarray) and len(self.origin) == 1
        return Basis(self.kind, self.origin) if plain else None

    def basis_of(self, x: Tensor) -> Basis | None:
        """The basis, if the monomials of x [N, F] can be kept."""
        few = x.numel() * x.shape[1] <= KEPT and x.dtype is torch.float64 and not x.is_cuda and not x.requires_grad
        return self.basis if few and len(x) else None

    def potentials(self, observations: Vectors, all_observed: bool = False) -> Potentials:
        return Potentials(self.log_density(observations.values), observations.rows, all_observed=all_observed)

    def statistics(self, observations: Vectors, visits: Tensor) -> Tensor:
        if (basis := self.basis_of(observations.values)) and not visits.requires_grad:
            return torch.from_numpy((basis.of(observations.values)[0] @ visits.numpy()).T)
        monomials = Basis(self.kind, self.origin).monomials
        if len(self.origin) == 1:
            return (monomials(observations.values.T - self.origin.T) @ visits).T
        pairs = zip(visits.T, self.origin[..., None], strict=True)
        return torch.stack([monomials(observations.values.T - begin) @ weights for weights, begin in pairs])

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        roots = cholesky(self.kind.full(self.covars, *self.means.shape))[states]
        noise = torch.randn(*states.shape, self.means.shape[1], generator=generator, dtype=self.means.dtype)
        return self.means[states] + (roots @ noise.to(self.means.device).unsqueeze(-1)).squeeze(-1)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x | z): x [N, F] -> [N, K]."""
        found = None if (basis := self.basis_of(x)) is None else self.from_monomials(basis, x)
        return self.kind.log_density(x, self.means, self.covars) if found is None else torch.from_numpy(found)

    @np.errstate(all="ignore")
    def from_monomials(self, basis: Basis, x: Tensor) -> Array | None:
        """log p(x | z) as one product with the monomials, which is much faster than the `log_density` of the
        covariance type; None if it would not be accurate."""
        monomials, reach = basis.of(x)
        try:
            coefficients, precision = self.kind.coefficients(
                self.means.numpy() - basis.origin.numpy(), self.covars.numpy()
            )
        except np.linalg.LinAlgError:
            return None
        return (coefficients @ monomials).T if reach * precision <= ACCURATE else None

    def moments(self, statistics: Tensor, shift: Tensor) -> Moments:
        """The moments of statistics, around an origin that is moved by `shift` ([1, F] or [K, F])."""
        features = self.means.shape[1]
        visits, first, second = statistics.split([1, features, statistics.shape[1] - features - 1], 1)
        return Moments(
            visits, first - visits * shift, self.kind.scatter(Moments(visits, first, second), shift.expand_as(first))
        )

    @np.errstate(all="ignore")
    def maximised(self, statistics: Tensor, prior: GaussianPrior) -> Gaussian:
        """The M-step. A state without visits keeps its covariance; it also keeps its mean unless there is a prior."""
        features = self.means.shape[1]
        statistics, means, covars, origin, *given = light(statistics, self.means, self.covars, self.origin, *prior)
        own = GaussianPrior(*given)
        moments = Moments(statistics[:, :1], statistics[:, 1 : features + 1], statistics[:, features + 1 :])
        shift = means - origin
        if "m" in self.trained:
            weight = own.mean_weight + moments.visits
            pulled = own.mean_weight * (own.mean - origin)
            found = (pulled + moments.first) / weight
            shift = found if weight.min() > 0 else where(weight > 0, found, shift)
        means, apart = origin + shift, self.apart
        if "c" in self.trained:
            covars, apart = self.maximised_covars(moments, shift, means - own.mean, covars, own)
        basis = self.__dict__.get("basis")
        return Gaussian(
            as_tensor(means), as_tensor(covars), self.kind_name, self.trained, self.given_origin, apart, basis
        )

    def maximised_covars(
        self, moments: Moments, shift: Array, off: Array, old: Array, prior: GaussianPrior
    ) -> tuple[Array, bool]:
        """The M-step of the covariances; also returns whether any were lost to rounding.

        This happens if the origin is too far from the data. Lost covariances keep their value until the next M-step, in
        which the origin of each state is its mean."""
        scatter = self.kind.scatter(moments, shift)
        totals = moments.second.reshape(scatter.shape), prior.covar + scatter
        before, after = (self.kind.variances(total) for total in totals)
        covars = self.kind.estimate(scatter, moments.visits, off, prior)
        if not self.apart and moments.visits.min() > 0 and (after - CANCELLED * before).min() > 0:
            return covars, False
        lost, visited = (after < CANCELLED * before).any(1), moments.visits[:, 0] > 0
        covars = where(self.kind.of_states(visited), covars, old)
        apart = self.apart or bool(lost.any())
        if apart and self.given_origin is not None:
            raise InputError("means_ is too far from the data to estimate variances; set it closer to the data.")
        if apart:
            covars = where(self.kind.of_states(lost), old, covars)
        if not bool((self.kind.variances(covars) > 0).all()):
            raise InputError("A variance is not positive; use a larger covars_prior, or remove constant features.")
        return covars, apart


def outer(left: Array, right: Array) -> Array:
    """The outer product: [..., F], [..., F] -> [..., F, F]."""
    return left[..., :, None] * right[..., None, :]


def at_least(values: Array, smallest: float) -> Array:
    return values.clamp(min=smallest) if isinstance(values, Tensor) else np.maximum(values, smallest)


def where(condition: Array, chosen: Array, other: Array) -> Array:
    return (np if isinstance(condition, np.ndarray | np.bool_) else torch).where(condition, chosen, other)


def as_tensor(values: Array) -> Tensor:
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


def light(first: Tensor, *others: Tensor) -> tuple[Any, ...]:
    """Convert tensors of one device and type to NumPy arrays, if the first (and largest) is a small float64 tensor on a
    CPU and none has gradients. Otherwise the tensors are returned."""
    few = first.dtype is torch.float64 and not first.is_cuda and first.numel() <= SMALL
    given = first, *others
    few = few and True not in [one.requires_grad for one in given]
    return tuple([one.numpy() for one in given]) if few else given


def cholesky(covars: Tensor) -> Tensor:
    """The Cholesky factor of covariances [..., F, F]; jitter is added if one is not positive definite."""
    root, failed = torch.linalg.cholesky_ex(covars)
    if not bool(failed.any()):
        return root
    size = covars.diagonal(dim1=-2, dim2=-1).mean(-1)
    for nudge in (torch.full_like(size, JITTER), JITTER * (1 + size)):
        root, failed = torch.linalg.cholesky_ex(covars + torch.diag_embed(nudge[..., None].expand(covars.shape[:-1])))
        if not bool(failed.any()):
            return root
    raise InputError("A covariance is not symmetric and positive definite; use a larger covars_prior or min_covar.")
