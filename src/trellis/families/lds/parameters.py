"""The parameters of a linear dynamical system over one-hot words."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trellis.config import choose
from trellis.families.lds.onehot import IndefiniteError, OneHot, Whitening


class Parameters(NamedTuple):
    """x_t = A x_{t-1} + N(0, I), w_t = C x_t + N(0, D), D = Cov(w) - C E C'; or D is diagonal (E is zero)."""

    transition: np.ndarray  # A [h, h]
    loadings: np.ndarray  # C [n, h]
    explained: np.ndarray  # E [h, h]
    variance: np.ndarray | None = None  # [n] of the noise of each word, where it is diagonal

    def emission(self, coordinates: Whitening) -> OneHot:
        if self.variance is not None:
            coordinates = coordinates.with_variance(self.variance)
        return OneHot(coordinates, self.loadings, self.explained)


def whiten_state(transition: np.ndarray, loadings: np.ndarray, explained: np.ndarray, noise: np.ndarray) -> Parameters:
    """The system with the state's noise Q, in the coordinates where Q = I."""
    root = np.linalg.cholesky(noise)
    inverse = np.linalg.inv(root)
    moved = inverse @ explained @ inverse.T
    return Parameters(inverse @ transition @ root, loadings @ root, 0.5 * (moved + moved.T))


NOISES: dict[str, Callable[[np.ndarray, Whitening], np.ndarray] | None] = {  # of the variance left, and the scales
    "full": None,  # as it is
    "diagonal": lambda left, coordinates: left,
    "spherical": lambda left, coordinates: np.mean(left * coordinates.scale**2) / coordinates.scale**2,
    "bohning": lambda left, coordinates: np.full_like(left, 2.0),  # the inverse of his (I - 11'/(n + 1)) / 2
}


def restrict_noise(parameters: Parameters, coordinates: Whitening, noise: str) -> Parameters:
    """The system with a simpler noise of the words: the diagonal of the full one, its mean, or a constant."""
    restrict = choose(NOISES, noise, "The noise of the words")
    if restrict is None:
        return parameters
    explained = ((parameters.loadings @ parameters.explained) * parameters.loadings).sum(1)
    left = coordinates.variance - coordinates.frequency**2 - explained / coordinates.scale**2
    variance = restrict(left, coordinates)
    if not (variance > 0).all():
        raise IndefiniteError("The noise of a word would have a negative variance, so learning stops here.")
    return parameters._replace(explained=0 * parameters.explained, variance=variance)
