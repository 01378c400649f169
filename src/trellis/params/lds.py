"""The parameters of a linear dynamical system over one-hot words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trellis.emissions.onehot import OneHot, Whitening


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
