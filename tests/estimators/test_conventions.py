"""The estimators as scikit-learn knows estimators."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from estimator_cases import CASES, CATEGORICAL, LENGTHS, Case, assert_close, parameters, set_by_hand
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import trellis
from trellis.estimators import CategoricalHMM, ConvergenceMonitor, GaussianHMM


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parameters_and_clones(case: Case) -> None:
    model = case.ours(n_iter=7, random_state=3, missing_values=np.nan)
    assert isinstance(model, BaseEstimator)
    model.fit(case.data(), LENGTHS)
    twin = clone(model)
    assert (
        twin.get_params()
        == model.get_params()
        == case.ours(n_iter=7, random_state=3, missing_values=np.nan).get_params()
    )
    assert not any(name.startswith("_") for name in model.get_params())
    assert not hasattr(twin, "startprob_")
    twin.set_params(n_iter=2).fit(case.data(), LENGTHS)
    assert twin.monitor_.iter == 2
    assert repr(twin).startswith(f"{case.name}(")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pickles(case: Case, tmp_path: Path) -> None:
    model = case.ours(random_state=0, n_iter=3).fit(case.data(), LENGTHS)
    joblib.dump(model, tmp_path / "model")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")):
        assert copy.score(case.data(1)) == model.score(case.data(1))
        assert copy.monitor_.history == model.monitor_.history
        copy.partial_fit(case.data(2))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fitting_twice_is_fitting_once(case: Case) -> None:
    once = case.ours(random_state=0, n_iter=4).fit(case.data(), LENGTHS)
    twice = case.ours(random_state=0, n_iter=4).fit(case.data(1)).fit(case.data(), LENGTHS)
    for one, other in zip(parameters(once), parameters(twice), strict=True):
        assert_close(one, other)
    assert once.monitor_.history == twice.monitor_.history


def test_fitting_again_without_initialisation_goes_on() -> None:
    X = CATEGORICAL.data()
    model = CATEGORICAL.ours(random_state=0, n_iter=3, tol=-np.inf).fit(X)
    model.set_params(init_params="").fit(X)
    whole = CATEGORICAL.ours(random_state=0, n_iter=6, tol=-np.inf).fit(X)
    assert_close(list(model.monitor_.history), list(whole.monitor_.history)[3:])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_not_fitted(case: Case) -> None:
    model = case.ours()
    for ask in (model.score, model.decode, model.predict, model.predict_proba, model.aic):
        with pytest.raises(NotFittedError):
            ask(case.data())
    for nothing in (model.sample, model.get_stationary_distribution):
        with pytest.raises(NotFittedError):
            nothing()


def test_positional_arguments_are_those_of_hmmlearn() -> None:
    assert CategoricalHMM(4, 2.0, 3.0).get_params()["transmat_prior"] == 3.0
    assert GaussianHMM(4, "full", 0.1).get_params()["min_covar"] == 0.1


def test_grid_search_over_lists_of_sequences() -> None:
    parts = np.split(CATEGORICAL.data()[:, 0], np.cumsum(LENGTHS)[:-1])
    search = GridSearchCV(CategoricalHMM(random_state=0, n_features=6), {"n_components": [1, 2]}, cv=2)
    search.fit(parts)
    assert search.best_params_["n_components"] in (1, 2)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_a_monitor_of_ones_own() -> None:
    class Threshold(ConvergenceMonitor):
        @property
        def converged(self) -> bool:
            return self.iter == self.n_iter or self.history[-1] >= self.tol

    X = CATEGORICAL.data()
    full = CATEGORICAL.ours(random_state=0, n_iter=9, tol=-np.inf).fit(X)
    assert full.monitor_.converged
    model = CATEGORICAL.ours(random_state=0, n_iter=9)
    own = model.monitor_ = Threshold(full.monitor_.history[3], model.monitor_.n_iter, model.monitor_.verbose)
    model.fit(X)
    assert model.monitor_ is own
    assert list(own.history) == list(full.monitor_.history)[:4]
    assert list(model.fit(X).monitor_.history) == list(full.monitor_.history)[:4]
    assert "history=[" in repr(own)


def test_parameters_of_either_kind_may_be_set_after_fitting() -> None:
    model = CATEGORICAL.ours(random_state=0).fit(CATEGORICAL.data())
    set_by_hand(model)
    model.transmat_ = model.transmat_.tolist()
    assert np.isfinite(model.score(CATEGORICAL.data()))


def test_n_features_is_found_anew_unless_given() -> None:
    model = CategoricalHMM(2, random_state=0)
    assert model.fit([0, 1, 1]).n_features == 2
    assert model.fit([0, 3, 1]).n_features == 4
    assert clone(model).n_features is None
    model.n_features = 6
    assert model.fit([0, 1, 1]).emissionprob_.shape == (2, 6)
    assert clone(model).n_features == 6


def test_a_chain_that_falls_apart_settles_where_it_starts() -> None:
    model = CategoricalHMM(2)
    model.startprob_, model.transmat_ = np.array([0.3, 0.7]), np.eye(2)
    assert_close(model.get_stationary_distribution(), [0.3, 0.7])


def test_the_estimators_are_imported_only_when_asked_for() -> None:
    code = "import sys, trellis; assert 'sklearn' not in sys.modules; from trellis import CategoricalHMM, PoissonHMM"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert trellis.CategoricalHMM is CategoricalHMM
    with pytest.raises(AttributeError, match="no attribute 'NoSuchHMM'"):
        trellis.NoSuchHMM  # noqa: B018


@pytest.mark.parametrize("page", ["docs/estimators.md"])
def test_the_examples_of_the_documentation_run(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    code = "\n".join(block.split("```")[0] for block in text.split("```python\n")[1:])
    names: dict[str, Any] = {}
    exec(code, names)
    assert isinstance(names["model"], CategoricalHMM)
    assert names["dense"].symbol_embeddings_.shape == (5, 2)
