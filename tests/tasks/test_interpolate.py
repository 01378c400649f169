"""Interpolation: EM climbs, finds the weights that made the data, and never loses to one model alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import minimize_scalar

from trellis.tasks.mixture import em_step, fit_weights, interpolate

ROUNDING = 1e-12
OPTIMUM = 1e-3  # of a weight, where the likelihood is flat


def drawn(weights: np.ndarray, tokens: int, seed: int = 0, words: int = 30) -> np.ndarray:
    """log p [models, tokens] of words drawn from a mixture of random unigram models."""
    rng = np.random.default_rng(seed)
    models = rng.dirichlet(np.full(words, 0.3), len(weights))
    return np.log(models[:, rng.choice(words, tokens, p=weights @ models)] + 1e-30)


def test_the_weights_of_the_source_are_recovered() -> None:
    weights = np.array([0.6, 0.3, 0.1])
    assert fit_weights(drawn(weights, 200_000)) == pytest.approx(weights, abs=0.01)


def test_two_models_against_a_line_search() -> None:
    log_probs = drawn(np.array([0.7, 0.3]), 500)

    def loss(weight: float) -> float:
        return -interpolate(log_probs, np.array([weight, 1 - weight])).sum()

    best = minimize_scalar(loss, bounds=(0, 1), method="bounded", options={"xatol": 1e-8}).x
    assert fit_weights(log_probs)[0] == pytest.approx(best, abs=OPTIMUM)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 40))
def test_em_climbs_and_beats_every_model(seed: int, models: int, tokens: int) -> None:
    log_probs = np.random.default_rng(seed).normal(-4, 2, (models, tokens))
    weights, reached = np.full(models, 1 / models), -np.inf
    probs = np.exp(log_probs - log_probs.max(0))
    for _ in range(20):
        before, (weights, reached) = reached, em_step(probs, weights)
        assert reached >= before - ROUNDING
        assert weights.sum() == pytest.approx(1, abs=ROUNDING)
    fitted = fit_weights(log_probs)
    assert (fitted >= 0).all()
    assert fitted.sum() == pytest.approx(1)
    assert interpolate(log_probs, fitted).sum() >= log_probs.sum(1).max() - ROUNDING * tokens


def test_interpolation_is_a_sum_of_probabilities() -> None:
    log_probs, weights = np.log([[0.1, 0.2, 0.5], [0.3, 0.4, 0.1]]), np.array([0.25, 0.75])
    assert np.exp(interpolate(log_probs, weights)) == pytest.approx(weights @ np.exp(log_probs))


def test_a_model_that_is_always_better_takes_all() -> None:
    assert fit_weights(np.array([[-1.0, -2.0], [-3.0, -2.5]])).tolist() == [1.0, 0.0]


def test_impossible_tokens() -> None:
    """A token impossible for one model is left to the other; one impossible for all says nothing."""
    log_probs = np.array([[-np.inf, -1.0, -np.inf], [-1.0, -np.inf, -np.inf]])
    fitted = fit_weights(log_probs)
    assert fitted == pytest.approx([0.5, 0.5])
    assert interpolate(log_probs, fitted).tolist() == pytest.approx([np.log(0.5) - 1] * 2 + [-np.inf])
    assert fit_weights(np.full((2, 3), -np.inf)).sum() == 1
