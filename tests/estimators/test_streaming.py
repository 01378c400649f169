"""Filtering one observation at a time, and forecasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from estimator_cases import CASES, CATEGORICAL, GAUSSIANS, LENGTHS, POISSON, STATES, Case, assert_close, set_by_hand
from scipy import stats

from trellis import TrellisError
from trellis.estimators import CategoricalHMM, FilterState
from trellis.testing.oracle import SMALLEST_P, Paths, chi_square

DRAWS = 4000


def by_hand(case: Case, **options: Any) -> Any:
    model = case.ours(**options)
    set_by_hand(model)
    model._check()
    return model


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_equal_enumeration_and_the_whole_sequence(case: Case) -> None:
    model, X = by_hand(case), case.data()[:6]
    (block,) = model._blocks(model._read(X, None))
    weights = model._emission().potentials(block.observations).gather()[0].exp().numpy()
    truth = Paths(model.startprob_, np.broadcast_to(model.transmat_, (5, STATES, STATES)), weights)
    state, found = None, []
    for x in X:
        state = model.filter_step(state, x)
        found.append(state)
    assert_close([one.probs for one in found], truth.filtered())
    assert_close([one.log_prob for one in found], truth.log_norms())
    assert_close(found[-1].log_likelihood, model.score(X))
    assert [one.steps for one in found] == [1, 2, 3, 4, 5, 6]
    assert_close(model.filter(X), truth.filtered())
    whole = model.filter(case.data(), LENGTHS)
    assert_close(whole[:40], model.filter(case.data()[:40]))
    assert_close(whole[40], model.filter_step(None, case.data()[40]).probs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_missing_observations_and_forecasts_agree_with_the_score(case: Case) -> None:
    """p(x_{t+h} | x_<=t) from the likelihoods of sequences with gaps."""
    model, X = by_hand(case, missing_values=-9), case.data()[:8]
    state = None
    for x in X[:3]:
        state = model.filter_step(state, x)
    later = model.filter_step(model.filter_step(state, None), None)
    ahead = model.forecast(5, state)
    assert_close(ahead.states[1], later.probs)
    assert later.log_likelihood == state.log_likelihood
    expected = []
    for h in range(1, 6):
        gaps = X[: 3 + h].copy()
        gaps[3:-1] = -9
        expected.append(model.score(gaps) - model.score(X[:3]))
    assert_close(ahead.log_prob(X[3:]), expected)


def test_a_forecast_of_symbols_and_of_the_start() -> None:
    model = by_hand(CATEGORICAL)
    ahead = model.forecast(4)
    assert_close(ahead.states[3], model.startprob_ @ np.linalg.matrix_power(model.transmat_, 3))
    assert_close(ahead.probs, ahead.states @ model.emissionprob_)
    assert_close(np.exp(ahead.log_prob([0, 1, 2, 3])), ahead.probs[np.arange(4), np.arange(4)])
    samples = [int(model.sample(4, random_state=seed)[0][-1, 0]) for seed in range(DRAWS)]
    assert chi_square(np.array(samples), ahead.probs[3]) > SMALLEST_P
    with pytest.raises(TrellisError, match="CategoricalHMM has no mean observation"):
        ahead.mean  # noqa: B018


@pytest.mark.parametrize("case", [*GAUSSIANS, POISSON], ids=str)
def test_moments_of_a_forecast(case: Case) -> None:
    """Against the average of samples, in standard errors."""
    model = by_hand(case)
    state = model.filter_step(None, case.data()[0])
    ahead = model.forecast(2, state)
    random = np.random.RandomState(0)
    emit = model._emitter()
    draws = np.array([emit(random.choice(STATES, p=ahead.states[1]), random) for _ in range(DRAWS)])
    error = np.sqrt(np.diagonal(ahead.covariance[1]) / DRAWS)
    assert (np.abs(draws.mean(0) - ahead.mean[1]) < stats.norm.isf(SMALLEST_P) * error).all()
    np.testing.assert_allclose(np.cov(draws.T), ahead.covariance[1], rtol=0.15, atol=0.15 * ahead.covariance[1].max())
    with pytest.raises(TrellisError, match="does not emit symbols"):
        ahead.probs  # noqa: B018


def test_strings_and_bad_input() -> None:
    model = CategoricalHMM(2, random_state=0).fit("abracadabra")
    state = model.filter_step(model.filter_step(None, "a"), "b")
    assert_close(state.probs, model.filter("ab")[1])
    with pytest.raises(TrellisError, match="unknown symbol x"):
        model.filter_step(state, "x")
    with pytest.raises(TrellisError, match="h is 0"):
        model.forecast(0)
    with pytest.raises(TrellisError, match="filter state has 3 states, but the model has 2"):
        model.filter_step(FilterState(np.ones(3) / 3, 0.0, 0.0, 1), "a")
