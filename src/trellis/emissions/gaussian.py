"""Gaussian emissions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.emissions.base import Emission, Vectors
from trellis.emissions.covariances import COVARIANCES, Array, Covariance, GaussianPrior, Moments, cholesky
from trellis.errors import InputError
from trellis.types import Potentials

FAR = 1e6  # squared distance between states, in variances, beyond which each state's moments have their own origin
CANCELLED = 1e-10  # scatter / second moment below which a variance is lost to rounding
SMALL = 1 << 14  # in arrays of up to this many numbers, torch's fixed cost per operation dominates
KEPT = 1 << 20  # maximum number of monomials that are kept
ACCURATE = 1e4  # squared distance from the origin, in variances, up to which densities from monomials are accurate


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
        """A `Basis` around the origin. None if each state has its own origin, if the origin is not a small float64
        tensor on a CPU, or if a parameter requires gradients."""
        if self.given_basis is not None and self.origin is self.given_basis.origin:
            return self.given_basis
        plain = isinstance(light(self.origin, self.means, self.covars)[0], np.ndarray) and len(self.origin) == 1
        return Basis(self.kind, self.origin) if plain else None

    def basis_of(self, x: Tensor) -> Basis | None:
        """The basis, or None if the monomials of x [N, F] are not kept."""
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
        """log p(x | z) [N, K] as one matrix product of coefficients and monomials, which is much faster than the
        `log_density` of the covariance type. None if this would be inaccurate, or if a covariance is not positive
        definite."""
        monomials, reach = basis.of(x)
        try:
            coefficients, precision = self.kind.coefficients(
                self.means.numpy() - basis.origin.numpy(), self.covars.numpy()
            )
        except np.linalg.LinAlgError:
            return None
        return (coefficients @ monomials).T if reach * precision <= ACCURATE else None

    def moments(self, statistics: Tensor, shift: Tensor) -> Moments:
        """The moments that `statistics` contain, converted to an origin that is moved by `shift` ([1, F] or [K, F])."""
        features = self.means.shape[1]
        visits, first, second = statistics.split([1, features, statistics.shape[1] - features - 1], 1)
        return Moments(
            visits, first - visits * shift, self.kind.scatter(Moments(visits, first, second), shift.expand_as(first))
        )

    @np.errstate(all="ignore")
    def maximised(self, statistics: Tensor, prior: GaussianPrior) -> Gaussian:
        """The M-step. A state without visits keeps its covariance; it also keeps its mean if that has no prior."""
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
        """The M-step of the covariances; also returns whether any of them were lost to rounding.

        Covariances are lost if the origin is too far from the data. They keep their value until the next M-step, in
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
