"""The estimators on a GPU: the same numbers as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from estimator_cases import CASES, CATEGORICAL, GAUSSIANS, LENGTHS, Case, assert_close, parameters

from trellis.estimators import DenseHMM, VariationalCategoricalHMM, VariationalGaussianHMM

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


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


@pytest.mark.parametrize("learning", ["em", "cooccurrence"])
def test_vectors(learning: str) -> None:
    options = {"learning": learning, "random_state": 1, "n_iter": 3, "n_epochs": 20, "n_init": 2}
    models = [DenseHMM(3, 2, device=device, **options).fit(CATEGORICAL.data(), LENGTHS) for device in ("cpu", "cuda")]
    assert_close(models[0].transmat_, models[1].transmat_, 1e-6)


@pytest.mark.parametrize("kind", [VariationalCategoricalHMM, VariationalGaussianHMM])
def test_variational_inference(kind: type) -> None:
    X = CATEGORICAL.data() if kind is VariationalCategoricalHMM else GAUSSIANS[0].data()
    options = {"random_state": 1, "n_iter": 5, "tol": -np.inf, "n_init": 2}
    here, there = (kind(3, device=device, **options).fit(X, LENGTHS) for device in ("cpu", "cuda"))
    assert_close(list(here.monitor_.history), list(there.monitor_.history))
    assert_close(here.transmat_posterior_, there.transmat_posterior_)
