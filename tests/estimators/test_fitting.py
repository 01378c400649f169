"""Training beyond hmmlearn: restarts, held-out sequences, parts of the data, missing observations, few data."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from estimator_cases import (
    CASES,
    CATEGORICAL,
    GAUSSIANS,
    LENGTHS,
    POISSON,
    STATES,
    Case,
    assert_close,
    parameters,
    set_by_hand,
)

from trellis.errors import InputError
from trellis.estimators import CategoricalHMM, GaussianHMM, PoissonHMM
from trellis.estimators.base import BaseHMM
from trellis.learning.em import expect_together
from trellis.testing.oracle import Paths

SWITCHING = [[0.9, 0.1], [0.1, 0.9]]


def switching(n_samples: int, seed: int) -> np.ndarray:
    """From a chain of two states that prefer different symbols."""
    model = CategoricalHMM(2)
    model.startprob_, model.transmat_, model.emissionprob_ = [0.5, 0.5], SWITCHING, [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]
    return model.sample(n_samples, random_state=seed)[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_restarts_keep_the_best(case: Case) -> None:
    X = case.data()
    together = case.ours(random_state=4, n_iter=6, tol=-np.inf, n_init=4).fit(X, LENGTHS)
    seeds = [4, *np.random.RandomState(4).randint(2**31 - 1, size=3)]
    apart = [case.ours(random_state=int(seed), n_iter=6, tol=-np.inf).fit(X, LENGTHS) for seed in seeds]
    best = max(apart, key=lambda model: model.monitor_.history[-1])
    assert len({round(model.monitor_.history[-1], 6) for model in apart}) > 1 or case.name == "GaussianHMM"
    assert_close(list(together.monitor_.history), list(best.monitor_.history))
    for one, other in zip(parameters(together), parameters(best), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_restarts_side_by_side_equal_one_after_the_other(case: Case) -> None:
    """What a GPU does; the CPU takes the other way."""
    model = case.ours(missing_values=-9)
    starts = []
    for seed in range(3):
        set_by_hand(model, seed)
        model._check()
        starts.append(model._parts())
    X = case.data()
    X[5] = -9
    (block,) = model._blocks(model._read(X, None))
    together = expect_together(starts, block.observations, block.lengths)
    for one, other in zip(model._expect(starts, [block]), together, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_likelihood_never_falls(case: Case) -> None:
    priors = {"covars_prior": 0.0} if case.name == "GaussianHMM" else {}
    history = list(
        case.ours(random_state=1, n_iter=25, tol=-np.inf, **priors).fit(case.data(), LENGTHS).monitor_.history
    )
    assert (np.diff(history) > -1e-8).all()
    assert history[-1] > history[0]


def test_early_stopping_keeps_what_held_out_sequences_like_best() -> None:
    X = switching(400, 0)
    options: dict[str, Any] = {"random_state": 0, "n_iter": 200, "tol": -np.inf, "emissionprob_prior": 1.1}
    stopped = CategoricalHMM(6, early_stopping=True, n_iter_no_change=3, validation_fraction=0.25, **options)
    stopped.fit(X, [20] * 20)
    scores = stopped.validation_scores_
    assert len(scores) == stopped.monitor_.iter < 200
    assert scores.index(max(scores)) == len(scores) - 4
    order = np.random.RandomState(0).permutation(20)
    held = np.concatenate([X[20 * i : 20 * i + 20] for i in order[:5]])
    assert_close(stopped.score(held, [20] * 5), max(scores))


def test_early_stopping_of_a_single_sequence_holds_out_its_end() -> None:
    X = switching(300, 1)
    model = CategoricalHMM(2, early_stopping=True, random_state=0, n_iter=10, tol=-np.inf, n_iter_no_change=50).fit(X)
    assert_close(model.score(X[270:]), max(model.validation_scores_))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_partial_fit_is_one_iteration(case: Case) -> None:
    X = case.data()
    whole, part = case.ours(random_state=2, n_iter=1), case.ours(random_state=2)
    whole.fit(X, LENGTHS)
    part.partial_fit(X, LENGTHS)
    for one, other in zip(parameters(whole), parameters(part), strict=True):
        assert_close(one, other)


def test_partial_fit_from_parameters_set_by_hand() -> None:
    whole, part = CATEGORICAL.ours(init_params="", n_iter=1), CATEGORICAL.ours()
    for model in (whole, part):
        set_by_hand(model)
    assert_close(part.partial_fit(CATEGORICAL.data()).transmat_, whole.fit(CATEGORICAL.data()).transmat_)


def test_partial_fit_blends_statistics() -> None:
    """Two steps by hand: the second batch counts for 3 ** -decay of the running mean."""
    first, second = switching(50, 2), switching(80, 3)
    model = CategoricalHMM(2, random_state=0, n_features=3, learning_decay=0.8)
    model.partial_fit(first)
    (one,) = model._expect([model._parts()], model._blocks(model._read(second, None)))
    mean = model._running.mean.transition * (1 - 3**-0.8) + one.transition / 80 * 3**-0.8
    model.partial_fit(second)
    assert_close(model.transmat_, mean / mean.sum(1, keepdim=True))


def test_partial_fit_learns_a_stream() -> None:
    """In one pass it comes close to the model that wrote the stream."""
    model = CategoricalHMM(2, random_state=3, n_features=3)
    test = switching(5000, 99)
    scores = [model.partial_fit(switching(200, seed)).score(test) for seed in range(60)]
    model.startprob_, model.transmat_, model.emissionprob_ = [0.5, 0.5], SWITCHING, [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]
    assert scores[-1] > scores[0] + 400
    assert scores[-1] > model.score(test) - 20


@pytest.mark.parametrize("case", CASES, ids=str)
def test_missing_observations_are_summed_out(case: Case) -> None:
    model = case.ours(missing_values=-9)
    set_by_hand(model)
    model._check()
    X = case.data()[:5].copy()
    (block,) = model._blocks(model._read(X, None))
    weights = model._emission().potentials(block.observations).gather()[0].exp().numpy()
    weights[[1, 4]] = 1.0
    X[[1, 4]] = -9
    truth = Paths(model.startprob_, np.broadcast_to(model.transmat_, (4, STATES, STATES)), weights)
    assert_close(model.score(X), np.log(truth.likelihood))
    assert_close(model.predict_proba(X), truth.smoothed())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_with_gaps_counts_what_was_seen(case: Case) -> None:
    """With one state the estimates are plain averages, which a gap does not touch."""
    X = case.data()
    gaps = X.copy()
    gaps[::7] = -9
    options = {"n_iter": 2, "random_state": 0, "n_components": 1}
    with_gaps = type(case.ours())(**case.options, missing_values=-9, **options).fit(gaps)
    without = type(case.ours())(**case.options, **options).fit(X[np.arange(len(X)) % 7 > 0])
    for name in ("emissionprob_", "means_", "covars_", "lambdas_"):
        if hasattr(with_gaps, name):
            assert_close(getattr(with_gaps, name), getattr(without, name))


@pytest.mark.parametrize(
    ("model", "X"),
    [
        (CategoricalHMM(5, random_state=0), [3]),
        (GaussianHMM(4, random_state=0), [[1.0, 2.0]]),
        (GaussianHMM(4, "full", random_state=0), [[1.0, 2.0], [2.0, 1.0]]),
        (PoissonHMM(3, random_state=0), [[2]]),
        (PoissonHMM(3, random_state=0), [[0], [0]]),
    ],
)
def test_few_observations_are_enough(model: Any, X: Any) -> None:
    model.fit(X)
    assert np.isfinite(model.score(X))
    assert np.isfinite(model.sample(3)[0]).all()


def test_a_state_that_is_never_left_keeps_its_row(caplog: pytest.LogCaptureFixture) -> None:
    model = CategoricalHMM(2, init_params="", n_iter=2, n_features=2)
    model.startprob_, model.transmat_, model.emissionprob_ = [1.0, 0.0], [[0.5, 0.5], [0.25, 0.75]], np.eye(2)
    model.fit([0, 0, 1])
    assert_close(model.transmat_, [[0.5, 0.5], [0.25, 0.75]])
    assert "Some state has no outgoing transitions" in caplog.text


def test_impossible_data_are_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    model = CategoricalHMM(1, init_params="", n_iter=1)
    model.startprob_, model.transmat_, model.emissionprob_ = [1.0], [[1.0]], [[1.0, 0.0]]
    model.fit([0, 1])
    assert "probability zero" in caplog.text


def test_long_and_short_sequences_share_little_padding() -> None:
    model = CATEGORICAL.ours()
    set_by_hand(model)
    lengths = np.array([1] * 30 + [1000] + [3] * 20)
    blocks = model._blocks(model._read(np.zeros(lengths.sum(), int), lengths))
    assert sum(block.observations.numel() for block in blocks) <= 2 * lengths.sum()
    assert sorted(torch.cat([block.lengths for block in blocks]).tolist()) == sorted(lengths)


def test_gaussians_and_counts_are_learned() -> None:
    """Two states told apart by what they emit."""
    random = np.random.RandomState(0)
    states = np.repeat(random.randint(2, size=40), 5)
    numbers = np.array([-3.0, 3.0])[states][:, None] + random.randn(200, 1)
    counts = random.poisson(np.array([2, 20])[states])[:, None]
    for model, X in ((GAUSSIANS[1].ours(n_iter=20), numbers), (POISSON.ours(n_iter=20), counts)):
        model.set_params(n_components=2, random_state=0, n_init=3).fit(X)
        agreement = (model.predict(X) == states).mean()
        assert max(agreement, 1 - agreement) > 0.98


def test_unknown_symbols_among_held_out_sequences() -> None:
    """Symbols that no training sequence has are uniform in every iteration, not impossible after the first."""
    X = np.array([0, 1, 0, 1, 1, 0, 1, 0, 2])
    options = {"early_stopping": True, "validation_fraction": 0.2, "handle_unknown": "uniform", "n_features": 3}
    model = CategoricalHMM(2, random_state=0, n_iter=4, tol=-np.inf, **options).fit(X)
    assert np.isfinite(model.validation_scores_).all()


@pytest.mark.parametrize("shape", [(), (6,), (6, 6)])
def test_priors_of_emissions_may_be_one_number_or_one_for_each_symbol(shape: tuple[int, ...]) -> None:
    """As many states as symbols, so that an axis too many or the wrong one shows."""
    prior = 1 + np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(float)
    X = np.random.RandomState(0).randint(6, size=60)
    model = CategoricalHMM(6, random_state=0, n_iter=1, emissionprob_prior=prior)
    set_by_hand_seed = CategoricalHMM(6, random_state=0, n_iter=0).fit(X)
    (counts,) = set_by_hand_seed._expect([set_by_hand_seed._parts()], model._blocks(model._read(X, None, True)))
    expected = counts.emission.T.numpy() + np.broadcast_to(prior, (6, 6)) - 1
    assert_close(model.fit(X).emissionprob_, expected / expected.sum(1, keepdims=True))


def test_a_copy_does_not_share_running_statistics() -> None:
    model = CategoricalHMM(2, random_state=0, n_features=3).partial_fit(switching(50, 2))
    before = model._running.mean.transition.clone()
    copy.copy(model).partial_fit(switching(80, 3))
    assert model._running.mean.transition.equal(before)
    assert model._running.mean.transition.device.type == "cpu"


def test_an_estimator_without_its_hooks_is_refused() -> None:
    class Unfinished(BaseHMM):
        pass

    with pytest.raises(InputError, match="Unfinished has no emission"):
        Unfinished(2).fit([[0.0], [1.0]])


def test_a_subnormal_start_that_turns_out_right() -> None:
    """Only log space finds the sequence possible, and then the start is certain."""
    model = GaussianHMM(2, n_iter=1, init_params="", params="s", covariance_type="diag")
    model.startprob_, model.transmat_ = [1.0, 1e-315], np.eye(2)
    model.means_, model.covars_ = [[0.0], [100.0]], [[1.0], [1.0]]
    model.fit([[100.0], [100.0]])
    assert_close(model.startprob_, [0.0, 1.0])
