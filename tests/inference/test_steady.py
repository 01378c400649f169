"""Steady states against iteration and scipy, at every scale."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg

from trellis.inference.steady import doubling, lyapunov, steady_state, stein

SCALES = (1e-12, 1.0, 1e12)


def stable(seed: int, size: int = 3) -> np.ndarray:
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    return 0.9 * matrix / np.abs(np.linalg.eigvals(matrix)).max()


def covariance(seed: int, size: int = 3) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(size, size))
    return root @ root.T + np.eye(size)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("seed", range(3))
def test_covariances_of_every_scale(seed: int, scale: float) -> None:
    transition, noise = stable(seed), scale * covariance(seed)
    expected = linalg.solve_discrete_lyapunov(transition, noise)
    np.testing.assert_allclose(lyapunov(transition, noise), expected, rtol=1e-9, atol=1e-10 * scale)
    middle = scale * np.random.default_rng(seed).normal(size=(3, 2))
    right = stable(seed + 1, 2)
    found = stein(transition, middle, right)
    np.testing.assert_allclose(found, transition @ found @ right.T + middle, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("seed", range(3))
def test_the_filter_settles_at_every_scale(seed: int, scale: float) -> None:
    transition, noise, information = stable(seed), scale * covariance(seed), covariance(seed + 9) / scale
    predicted = noise
    for _ in range(300):
        predicted = transition @ np.linalg.inv(np.linalg.inv(predicted) + information) @ transition.T + noise
    filtered = np.linalg.inv(np.linalg.inv(predicted) + information)
    close = {"rtol": 1e-8, "atol": 1e-9 * scale}
    np.testing.assert_allclose(doubling(transition, noise, information), predicted, **close)
    found = steady_state(transition, noise, information)
    np.testing.assert_allclose(found.predicted, predicted, **close)
    np.testing.assert_allclose(found.filtered, filtered, **close)
    back = filtered @ transition.T @ np.linalg.inv(predicted)
    smoothed = filtered
    for _ in range(300):
        smoothed = filtered + back @ (smoothed - predicted) @ back.T
    np.testing.assert_allclose(found.smoothed, smoothed, **close)


def test_without_states() -> None:
    assert stein(np.zeros((0, 0)), np.zeros((0, 2)), np.eye(2)).shape == (0, 2)
