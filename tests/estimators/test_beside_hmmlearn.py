"""The estimators beside those of hmmlearn: the same starting parameters, the same numbers."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from estimator_cases import (
    CASES,
    CATEGORICAL,
    GAUSSIANS,
    LENGTHS,
    MIXED,
    POISSON,
    STATES,
    Case,
    assert_close,
    parameters,
    set_by_hand,
)  # fmt: skip

from trellis.estimators import GMMHMM, CategoricalHMM, GaussianHMM

hmm = pytest.importorskip("hmmlearn.hmm")

ITERATIONS = 20
PRIORS = {
    "CategoricalHMM": {"startprob_prior": 1.5, "transmat_prior": 0.7, "emissionprob_prior": 2.5},
    "GaussianHMM": {"means_prior": 0.3, "means_weight": 0.5, "covars_prior": 0.2, "covars_weight": 5.0},
    "PoissonHMM": {"transmat_prior": 3.0, "lambdas_prior": 2.0, "lambdas_weight": 4.0},
    "MultinomialHMM": {"startprob_prior": 1.5, "transmat_prior": 0.7},
    "GMMHMM": {
        "weights_prior": 1.5,
        "means_prior": 0.3,
        "means_weight": 0.5,
        "covars_prior": 0.4,
        "covars_weight": 3.0,
    },
}


def twins(case: Case, **options: Any) -> tuple[Any, Any]:
    """Ours and theirs, with the same parameters set by hand."""
    models = case.ours(init_params="", **options), case.build(hmm, init_params="", **options)
    for model in models:
        set_by_hand(model)
    return models


def assert_same_training(ours: Any, theirs: Any, X: np.ndarray) -> None:
    for model in (ours, theirs):
        model.fit(X, LENGTHS)
    assert_close(list(ours.monitor_.history), list(theirs.monitor_.history))
    assert ours.monitor_.iter == theirs.monitor_.iter
    assert ours.monitor_.converged == theirs.monitor_.converged
    for one, other in zip(parameters(ours), parameters(theirs), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("implementation", ["log", "scaling"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_from_parameters_set_by_hand(case: Case, implementation: str) -> None:
    ours, theirs = twins(case, n_iter=ITERATIONS, tol=-np.inf, implementation=implementation)
    assert_same_training(ours, theirs, case.data())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_from_a_seed(case: Case) -> None:
    options = {"random_state": 5, "n_iter": ITERATIONS, "tol": 1e-3}
    assert_same_training(case.ours(**options), case.build(hmm, **options), case.data())


@pytest.mark.parametrize("seed", range(4))
def test_each_clustering_of_a_mixture_starts_from_the_seed(seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(150, 3)) + np.repeat([0, 4], 75)[:, None]
    ours, theirs = (kind(3, 2, random_state=seed, n_iter=2).fit(X) for kind in (GMMHMM, hmm.GMMHMM))
    assert_close(np.array(ours.monitor_.history), np.array(theirs.monitor_.history))


@pytest.mark.parametrize("case", [CATEGORICAL, POISSON, *GAUSSIANS], ids=str)
def test_training_from_a_generator_goes_on_where_it_stands(case: Case) -> None:
    ours, theirs = (
        build(random_state=np.random.RandomState(5), n_iter=2)
        for build in (case.ours, lambda **o: case.build(hmm, **o))
    )
    for _ in range(2):
        assert_same_training(ours, theirs, case.data())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_with_priors(case: Case) -> None:
    ours, theirs = twins(case, n_iter=ITERATIONS, tol=-np.inf, **PRIORS[case.name])
    assert_same_training(ours, theirs, case.data())


@pytest.mark.parametrize("params", ["", "s", "t", "st", "e", "se", "te"])
def test_training_of_some_parameters(params: str) -> None:
    ours, theirs = twins(CATEGORICAL, n_iter=5, tol=-np.inf, params=params)
    assert_same_training(ours, theirs, CATEGORICAL.data())


@pytest.mark.parametrize("params", ["st", "stm", "m", "mc"])
def test_training_of_some_parameters_of_gaussians(params: str) -> None:
    ours, theirs = twins(GAUSSIANS[2], n_iter=5, tol=-np.inf, params=params)
    assert_same_training(ours, theirs, GAUSSIANS[2].data())


def test_covariances_alone_are_estimated_from_the_visits() -> None:
    """hmmlearn counts no visits unless it trains the means too, so it cannot be asked."""
    model, _ = twins(GAUSSIANS[1], n_iter=1, params="c")
    X = GAUSSIANS[1].data()
    weights = model.predict_proba(X, LENGTHS)
    expected = [
        (0.01 + (weights[:, [z]] * (X - model.means_[z]) ** 2).sum(0)) / weights[:, z].sum()
        for z in range(len(weights.T))
    ]
    assert_close(model.fit(X, LENGTHS)._covars_, expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers(case: Case) -> None:
    ours, theirs = twins(case)
    X = case.data(3)
    assert_close(ours.score(X, LENGTHS), theirs.score(X, LENGTHS))
    for one, other in zip(ours.score_samples(X, LENGTHS), theirs.score_samples(X, LENGTHS), strict=True):
        assert_close(one, other)
    assert_close(ours.predict_proba(X, LENGTHS), theirs.predict_proba(X, LENGTHS))
    for algorithm in ("viterbi", "map"):
        score, states = ours.decode(X, LENGTHS, algorithm=algorithm)
        other_score, other_states = theirs.decode(X, LENGTHS, algorithm=algorithm)
        assert_close(score, other_score)
        np.testing.assert_array_equal(states, other_states)
    np.testing.assert_array_equal(ours.predict(X, LENGTHS), theirs.predict(X, LENGTHS))
    assert_close(ours.get_stationary_distribution(), theirs.get_stationary_distribution())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_information_criteria(case: Case) -> None:
    options = {"random_state": 5, "n_iter": 2}
    X = case.data()
    ours, theirs = case.ours(**options).fit(X, LENGTHS), case.build(hmm, **options).fit(X, LENGTHS)
    missed = (STATES - 1) * (MIXED - 1) if case.name == "GMMHMM" else 0  # hmmlearn counts the weights of one state
    assert_close(ours.aic(X, LENGTHS), theirs.aic(X, LENGTHS) + 2 * missed)
    assert_close(ours.bic(X, LENGTHS), theirs.bic(X, LENGTHS) + np.log(len(X)) * missed)


@pytest.mark.parametrize("case", [case for case in CASES if str(case) != "GaussianHMM-spherical"], ids=str)
def test_samples_come_from_the_same_random_numbers(case: Case) -> None:
    ours, theirs = twins(case)
    for currstate in (None, 1):
        samples = [model.sample(30, random_state=9, currstate=currstate) for model in (ours, theirs)]
        for one, other in zip(*samples, strict=True):
            assert_close(one, other)
            assert one.shape == other.shape


def test_spherical_samples_have_the_variance_of_their_state() -> None:
    """hmmlearn draws from the variances of other states once there are two features."""
    model = GaussianHMM(2, "spherical", random_state=0)
    model.startprob_, model.transmat_ = [0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]
    model.means_, model.covars_ = np.zeros((2, 2)), [1.0, 100.0]
    X, states = model.sample(4000)
    assert_close([X[states == z].var() for z in range(2)], [1.0, 100.0], tolerance=0.1)


def test_one_sequence_without_lengths() -> None:
    ours, theirs = twins(CATEGORICAL)
    X = CATEGORICAL.data(4)
    assert_close(ours.score(X), theirs.score(X))
    assert_close(ours.predict_proba(X), theirs.predict_proba(X))


def test_forbidden_transitions_stay_forbidden() -> None:
    models = twins(CATEGORICAL, n_iter=5, transmat_prior=2.0)
    for model in models:
        model.startprob_ = np.array([1.0, 0.0, 0.0])
        model.transmat_ = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    assert_same_training(*models, CATEGORICAL.data())
    assert (models[0].transmat_[[0, 1, 2, 2], [2, 0, 0, 1]] == 0).all()


def test_symbols_that_never_occur_have_no_probability_left() -> None:
    X = np.array([0, 2, 2, 0, 2, 0, 0, 2])[:, None]
    options = {"n_features": 5, "random_state": 0, "n_iter": 3}
    ours, theirs = CategoricalHMM(2, **options).fit(X), hmm.CategoricalHMM(2, **options).fit(X)
    assert_close(ours.emissionprob_, theirs.emissionprob_)
    assert (ours.emissionprob_[:, [1, 3, 4]] == 0).all()
    assert ours.score([0, 1, 2]) == -np.inf
    assert CategoricalHMM(2).fit(X).n_features == 3


def test_the_monitor_warns_when_the_likelihood_falls(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = CATEGORICAL.ours(tol=1e-3), CATEGORICAL.build(hmm, tol=1e-3)
    for monitor in (ours.monitor_, theirs.monitor_):
        caplog.clear()
        monitor.report(-1.0)
        assert not caplog.records
        monitor.report(-2.0)
        assert ["not converging" in record.message for record in caplog.records] == [True]
        assert monitor.converged


def test_warnings_of_fit(caplog: pytest.LogCaptureFixture) -> None:
    """Attributes about to be overwritten, and too few data for so many parameters."""
    X = CATEGORICAL.data()[:10]
    for model in (CATEGORICAL.ours(n_iter=1), CATEGORICAL.build(hmm, n_iter=1)):
        set_by_hand(model)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            model.fit(X)
        messages = " ".join(record.message for record in caplog.records)
        for name in ("startprob_", "transmat_", "emissionprob_", "overwritten", "degenerate"):
            assert name in messages


def test_verbose_training_reports_every_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for model in twins(CATEGORICAL, n_iter=4, tol=-np.inf, verbose=True):
        model.fit(CATEGORICAL.data(), LENGTHS)
        lines.append([[float(word) for word in line.split()] for line in capsys.readouterr().err.splitlines()])
    assert len(lines[0]) == 4
    assert_close(*lines)


def test_observations_far_from_every_state_that_can_be_reached() -> None:
    """A left-to-right chain meets an outlier that only a state out of reach could explain: hmmlearn's log space can."""
    X = np.array([0.0, 0.2, 90.0, 0.1, 3.0, 3.2, 90.0, 6.0, 6.1, 0.3, 3.1, 90.0])[:, None]
    models = [
        build(3, "diag", init_params="", params="tmc", n_iter=4, tol=-np.inf)
        for build in (GaussianHMM, hmm.GaussianHMM)
    ]
    for model in models:
        model.startprob_, model.means_ = np.array([1.0, 0.0, 0.0]), np.array([[0.0], [3.0], [90.0]])
        model.transmat_ = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
        model.covars_ = np.full((3, 1), 0.5)
    assert_close(models[0].score(X, [9, 3]), models[1].score(X, [9, 3]))
    assert_close(models[0].predict_proba(X, [9, 3]), models[1].predict_proba(X, [9, 3]))
    for model in models:
        model.fit(X, [9, 3])
    assert_close(list(models[0].monitor_.history), list(models[1].monitor_.history))
    assert_close(models[0].means_, models[1].means_)
