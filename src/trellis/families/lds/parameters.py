"""A one-hot word as a Gaussian observation of a hidden vector, w_t = C x_t + noise, on its n - 1 dimensions.

The words are centred and scaled, w_t = W (e_i - mu), W = diag(s), s_i = (mu_i + kappa / T)^(-1/2). They have no
variance along n ~ W^-1 1. The noise has the covariance
    D = Delta - g g' - C E C',  Delta = W diag(mu') W,  g = W mu' / sqrt(sum mu'),  mu' = mu + prior,
where C E C' is explained by the hidden vector. Without an (inverse Wishart) prior, Delta - g g' is the covariance of
the words. Since D n = 0 and C'n = 0, D can be replaced by D + g g', whose inverse and determinant need only [h, h]
matrices:
    N = C' Delta^-1 C,  Phi = C'(D + g g')^-1 C = (I - N E)^-1 N,  C'(D + g g')^-1 = (I - N E)^-1 C' Delta^-1."""

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from trellis.errors import TrellisError
from trellis.inference.steady import symmetric
from trellis.options import choose


class IndefiniteError(TrellisError):
    """Raised if the noise would have a negative variance."""


class Whitening:
    """The coordinates of w, given by frequencies mu [n] and scales s [n]; Cov w = diag(mu s^2) - m m', m = mu s."""

    def __init__(self, frequency: np.ndarray, pseudocount: float = 0.0, prior: float = 0.0, whiten: bool = True):
        """`pseudocount` and `prior` are frequencies, counts / T; without `whiten`, words are not scaled."""
        if not (frequency > 0).all():
            raise TrellisError("A word has count zero, so its scale is undefined; leave it out of the vocabulary.")
        self.frequency = frequency
        self.scale = (frequency + pseudocount) ** -0.5 if whiten else np.ones_like(frequency)
        self.mean = frequency * self.scale  # [n] m
        self.variance = frequency + prior  # [n] mu'
        self.delta = self.variance * self.scale**2  # [n]

    def with_variance(self, variance: np.ndarray) -> Self:
        """The same coordinates with another mu' [n]. With E = 0, the noise is diagonal, conditioned on n'w = 0."""
        other = copy(self)
        other.variance, other.delta = variance, variance * self.scale**2
        other.__dict__.pop("log_mean", None)
        return other

    @cached_property
    def null(self) -> np.ndarray:
        """The unit vector n along which w has no variance."""
        return (1 / self.scale) / np.linalg.norm(1 / self.scale)

    @cached_property
    def log_volume(self) -> float:
        """Offset from a log density of w on its n - 1 dimensions to that of the one-hot vector itself."""
        size = len(self.scale)
        return float(np.log(self.scale).sum() + 0.5 * np.log((self.scale**-2).sum() / size))

    @cached_property
    def log_mean(self) -> float:
        """2 log |n'g|, g = W mu' / sqrt(sum mu'): how much adding g g' to D adds to the log-determinant."""
        ghost = self.variance * self.scale / np.sqrt(self.variance.sum())
        return float(2 * np.log(abs(self.null @ ghost)))

    def total(self) -> float:
        """tr(Delta^-1 Cov(w)): n - 1 without a prior."""
        return float((self.frequency * (1 - self.frequency) / self.variance).sum())

    def product(self, vectors: np.ndarray) -> np.ndarray:
        """vectors' Cov(w) vectors, [h, h] of [n, h]."""
        projected = vectors.T @ self.mean
        return vectors.T @ (vectors * (self.frequency * self.scale**2)[:, None]) - np.outer(projected, projected)


class OneHot:
    """The emission, with loadings C [n, h] and explained covariance E [h, h] in the given coordinates."""

    def __init__(self, coordinates: Whitening, loadings: np.ndarray, explained: np.ndarray):
        self.coordinates, self.loadings, self.explained = coordinates, loadings, explained
        self.scaled = loadings / coordinates.delta[:, None]  # Delta^-1 C
        self.overlap = loadings.T @ self.scaled  # N
        try:
            root = np.linalg.cholesky(explained) if explained.any() else explained
            left = np.linalg.cholesky(np.eye(len(root)) - root.T @ self.overlap @ root)
        except np.linalg.LinAlgError as error:
            raise IndefiniteError(
                "The observation noise would have a negative variance, so EM stops here; use fewer iterations, "
                "a smaller hidden vector or more pseudocounts."
            ) from error
        half = np.linalg.solve(left, root.T)
        self.surplus = half.T @ half  # (E^-1 - N)^-1
        self.lift = np.eye(len(root)) + self.overlap @ self.surplus  # (I - N E)^-1
        self.log_det = float(np.log(coordinates.delta).sum() + 2 * np.log(np.diag(left)).sum() - coordinates.log_mean)

    @cached_property
    def information(self) -> np.ndarray:
        """The information matrix Phi: [h, h]."""
        return symmetric(self.lift @ self.overlap)

    @cached_property
    def sensing(self) -> np.ndarray:
        """(D + m m')^-1 C: [n, h]."""
        return self.scaled @ self.lift.T

    @cached_property
    def scores(self) -> np.ndarray:
        """C' Delta^-1 w of every word: [n, h]."""
        coordinates = self.coordinates
        return self.scaled * coordinates.scale[:, None] - self.scaled.T @ coordinates.mean

    def vectors(self) -> np.ndarray:
        """C' D^-1 w of every word: [n, h]."""
        return self.scores @ self.lift.T

    def constants(self) -> np.ndarray:
        """log N(w; 0, D) of every word, as a density of the one-hot vector: [n]."""
        frequency, variance = self.coordinates.frequency, self.coordinates.variance
        distance = (1 - 2 * frequency) / variance + (frequency**2 / variance).sum()
        distance += ((self.scores @ self.surplus) * self.scores).sum(1)
        volume = (len(frequency) - 1) * np.log(2 * np.pi) + self.log_det
        return -0.5 * (volume + distance) + self.coordinates.log_volume


class Parameters(NamedTuple):
    """x_t = A x_{t-1} + N(0, I), w_t = C x_t + N(0, D), D = Cov(w) - C E C'; or D is diagonal (E is zero)."""

    transition: np.ndarray  # A [h, h]
    loadings: np.ndarray  # C [n, h]
    explained: np.ndarray  # E [h, h]
    variance: np.ndarray | None = None  # [n] noise variance of each word, if diagonal

    def emission(self, coordinates: Whitening) -> OneHot:
        if self.variance is not None:
            coordinates = coordinates.with_variance(self.variance)
        return OneHot(coordinates, self.loadings, self.explained)


def whiten_state(transition: np.ndarray, loadings: np.ndarray, explained: np.ndarray, noise: np.ndarray) -> Parameters:
    """Transform a system with state noise Q to coordinates where Q = I."""
    root = np.linalg.cholesky(noise)
    inverse = np.linalg.inv(root)
    return Parameters(inverse @ transition @ root, loadings @ root, symmetric(inverse @ explained @ inverse.T))


NOISES: dict[str, Callable[[np.ndarray, Whitening], np.ndarray] | None] = {  # (residual, coordinates) -> noise
    "full": None,  # unrestricted
    "diagonal": lambda left, coordinates: left,
    "spherical": lambda left, coordinates: np.mean(left * coordinates.scale**2) / coordinates.scale**2,
    "bohning": lambda left, coordinates: np.full_like(left, 2.0),  # the inverse of Böhning's (I - 11'/(n + 1)) / 2
}


def restrict_noise(parameters: Parameters, coordinates: Whitening, noise: str) -> Parameters:
    """The system with simpler observation noise: the diagonal of the full covariance, its mean, or a constant."""
    restrict = choose(NOISES, noise, "The observation noise")
    if restrict is None:
        return parameters
    explained = ((parameters.loadings @ parameters.explained) * parameters.loadings).sum(1)
    left = coordinates.variance - coordinates.frequency**2 - explained / coordinates.scale**2
    variance = restrict(left, coordinates)
    if not (variance > 0).all():
        raise IndefiniteError("The observation noise of a word would have a negative variance, so EM stops here.")
    return parameters._replace(explained=0 * parameters.explained, variance=variance)
