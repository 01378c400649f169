"""The estimators on a GPU: the same numbers as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from estimator_cases import CASES, CATEGORICAL, GAUSSIANS, LENGTHS, Case, assert_close, parameters, set_by_hand

from elsewhere import pretended_gpu
from trellis.estimators import DenseHMM, VariationalCategoricalHMM, VariationalGaussianHMM

SHORT = [16, 1, 15]  # each step is slow on a pretended GPU
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


def constrained(
    case: Case, device: str, lengths: list[int] = LENGTHS, weights: list[float] | None = None
) -> list[np.ndarray]:
    """What weights, known states and constraints give on a device, in batch and stepwise; filters and forecasts."""
    X, random = case.data()[: sum(lengths)], np.random.RandomState(0)
    states = np.where(random.rand(len(X)) < 0.2, random.randint(3, size=len(X)), -1)
    tied = {"tied_emissions": [0, 1, 1], "tied_transitions": [0, 1, 1], "frozen_transitions": [0], "sticky": 2.0}
    model = case.ours(device=device, random_state=0, n_iter=3, tol=-np.inf, n_init=2, **tied)
    if case.options.get("covariance_type") != "tied":
        model.set_params(frozen_emissions=[0])
    set_by_hand(model)
    model.fit(X, lengths, sample_weight=weights, states=states)
    found = [*parameters(model), np.array(model.monitor_.history)]
    model.partial_fit(X, lengths, sample_weight=weights, states=states)
    state = model.filter_step(model.filter_step(None, X[0]), X[1])
    found += [*parameters(model), state.probs, model.filter(X, lengths), model.forecast(3, state).log_prob(X[2:5])]
    one, other = (case.ours(device=device, random_state=seed, n_iter=1).fit(X) for seed in (0, 1))
    return [*found, *parameters(one.align_to(other)), *parameters(one.align_to(other, X))]


@needs_gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_constraints_weights_and_known_states(case: Case) -> None:
    weights = [1, 0.5, 2, 1, 3]
    for here, there in zip(*(constrained(case, device, weights=weights) for device in ("cpu", "cuda")), strict=True):
        assert_close(here, there)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_constraints_and_known_states_on_a_pretended_gpu(case: Case) -> None:
    """Without weights: gradients leave the pretended GPU."""
    expected = constrained(case, "cpu", SHORT)
    with pretended_gpu():
        found = constrained(case, "cuda", SHORT)
    for here, there in zip(expected, found, strict=True):
        assert_close(here, there)


@needs_gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_and_answers(case: Case) -> None:
    X = case.data()
    options = {"random_state": 1, "n_iter": 5, "tol": -np.inf, "n_init": 3}
    here, there = (case.ours(device=device, **options).fit(X, LENGTHS) for device in ("cpu", "cuda"))
    assert_close(list(here.monitor_.history), list(there.monitor_.history))
    for one, other in zip(parameters(here), parameters(there), strict=True):
        assert_close(one, other)
    assert_close(here.predict_proba(X, LENGTHS), there.predict_proba(X, LENGTHS))
    assert (here.predict(X, LENGTHS) == there.predict(X, LENGTHS)).all()
    assert_close(here.partial_fit(X).transmat_, there.partial_fit(X).transmat_)


@needs_gpu
@pytest.mark.parametrize("learning", ["em", "cooccurrence"])
def test_vectors(learning: str) -> None:
    options = {"learning": learning, "random_state": 1, "n_iter": 3, "n_epochs": 20, "n_init": 2}
    models = [DenseHMM(3, 2, device=device, **options).fit(CATEGORICAL.data(), LENGTHS) for device in ("cpu", "cuda")]
    assert_close(models[0].transmat_, models[1].transmat_, 1e-6)


@needs_gpu
@pytest.mark.parametrize("kind", [VariationalCategoricalHMM, VariationalGaussianHMM])
def test_variational_inference(kind: type) -> None:
    X = CATEGORICAL.data() if kind is VariationalCategoricalHMM else GAUSSIANS[0].data()
    options = {"random_state": 1, "n_iter": 5, "tol": -np.inf, "n_init": 2}
    here, there = (kind(3, device=device, **options).fit(X, LENGTHS) for device in ("cpu", "cuda"))
    assert_close(list(here.monitor_.history), list(there.monitor_.history))
    assert_close(here.transmat_posterior_, there.transmat_posterior_)
