"""DenseHMM: the estimator."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from estimator_cases import CATEGORICAL, GAUSSIANS, LENGTHS, assert_close
from sklearn.base import clone

from cooccurring import cooccurrences
from experiments.densehmm.metrics import dense_freedom
from trellis.errors import InputError
from trellis.estimators import CategoricalHMM, DenseHMM, GaussianDenseHMM
from trellis.families.hmm.parameters.kernels import KERNELS
from trellis.learning.cooccurrence import DENSE_SYMBOLS

OPTIMIZERS = {"adam": 0.01, "sgd": 0.5, "lbfgs": 1.0}
WIGGLE = 1e-8
SETTINGS: dict[str, Any] = {"random_state": 0, "n_iter": 6, "tol": -np.inf}


def data() -> tuple[np.ndarray, list[int]]:
    return CATEGORICAL.data(), LENGTHS


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_likelihood_never_falls(kernel: str) -> None:
    for optimizer, rate in OPTIMIZERS.items():
        model = DenseHMM(3, 2, kernel=kernel, optimizer=optimizer, learning_rate=rate, **SETTINGS).fit(*data())
        history = np.array(model.monitor_.history)
        assert (np.diff(history) > -WIGGLE).all()
        assert history[-1] > history[0] + 1
        assert model.score(*data()) >= history[-1] - WIGGLE


def test_long_vectors_reach_what_a_table_reaches() -> None:
    options = {"random_state": 0, "n_iter": 40, "tol": 1e-2, "n_init": 2}
    dense = DenseHMM(3, 4, optimizer="lbfgs", learning_rate=1.0, **options).fit(*data())
    table = CategoricalHMM(3, **options).fit(*data())
    assert dense.score(*data()) > table.score(*data()) - 3


def test_methods_of_a_categorical_hmm() -> None:
    """With its probabilities in a CategoricalHMM every answer is the same."""
    dense, twin = DenseHMM(3, 2, **SETTINGS).fit(*data()), CategoricalHMM(3)
    twin.startprob_, twin.transmat_, twin.emissionprob_ = dense.startprob_, dense.transmat_, dense.emissionprob_
    assert_close(dense.score(*data()), twin.score(*data()))
    assert_close(dense.predict_proba(*data()), twin.predict_proba(*data()))
    assert (dense.predict(*data()) == twin.predict(*data())).all()
    assert_close(dense.get_stationary_distribution(), twin.get_stationary_distribution())
    assert (dense.sample(9, random_state=1)[0] == twin.sample(9, random_state=1)[0]).all()
    freedom = dense_freedom(3, 6, 2)
    assert_close(dense.aic(*data()), -2 * dense.score(*data()) + 2 * freedom)
    assert_close(dense.bic(*data()), -2 * dense.score(*data()) + np.log(sum(LENGTHS)) * freedom)


def test_vectors_compose_the_probabilities() -> None:
    model = DenseHMM(3, 2, emission_dims=4, emission_kernel="rbf", **SETTINGS).fit(*data())
    scores = np.exp(model.z_ @ model.u_.T)
    assert_close(model.transmat_, scores / scores.sum(1, keepdims=True))
    distances = np.exp(-((model.w_[:, None] - model.v_) ** 2).sum(-1) / 2)
    assert_close(model.emissionprob_, distances / distances.sum(1, keepdims=True))
    assert model.state_embeddings_.shape == (3, 2 + 2 + 4)
    assert model.symbol_embeddings_.shape == (6, 4)


@pytest.mark.parametrize("learning", ["em", "cooccurrence"])
def test_frozen_vectors_stay(learning: str) -> None:
    options = {"learning": learning, "n_epochs": 30, "learning_rate": 0.01}
    drawn = DenseHMM(3, 2, params="", **options, **SETTINGS).fit(*data())
    model = DenseHMM(3, 2, params="zv", **options, **SETTINGS).fit(*data())
    moved = [
        name for name in ("u_", "z_", "z_start_", "v_", "w_") if (getattr(model, name) != getattr(drawn, name)).any()
    ]
    assert moved == ["z_", "v_"]
    assert set(model.free_parameters()) == {"z", "v"}


def test_vectors_set_by_hand() -> None:
    drawn = DenseHMM(3, 2, **SETTINGS | {"n_iter": 0}).fit(*data())
    model = DenseHMM(3, 2, n_features=6, init_params="", **SETTINGS)
    for name in ("u_", "z_", "z_start_", "v_", "w_"):
        setattr(model, name, getattr(drawn, name))
    assert_close(model.compose().score(*data()), drawn.score(*data()))
    assert_close(
        list(model.fit(*data()).monitor_.history), list(drawn.set_params(n_iter=6).fit(*data()).monitor_.history)
    )
    model.u_ = np.zeros((2, 2))
    with pytest.raises(InputError, match="u_ must have the shape"):
        model.compose()


def test_restarts_in_one_descent_keep_the_best() -> None:
    X, lengths = data()
    for options in ({}, {"learning": "cooccurrence", "n_epochs": 50}):
        together = DenseHMM(3, 2, n_init=3, **options, **SETTINGS).fit(X, lengths)
        seeds = [0, *np.random.RandomState(0).randint(2**31 - 1, size=2)]
        apart = [DenseHMM(3, 2, **options, **SETTINGS | {"random_state": int(seed)}).fit(X, lengths) for seed in seeds]
        if options:
            best = min(apart, key=lambda model: model.losses_.min())
        else:
            best = max(apart, key=lambda model: model.monitor_.history[-1])
        assert_close(together.transmat_, best.transmat_, 1e-6)


@pytest.mark.parametrize("loss", ["frobenius", "kl"])
def test_cooccurrences_are_learned(loss: str) -> None:
    random = np.random.RandomState(1)
    transition, emission = random.dirichlet(np.ones(3), 3), random.dirichlet(np.ones(5), 3)
    omega = cooccurrences(torch.from_numpy(transition), torch.from_numpy(emission)).numpy()
    model = DenseHMM(3, 3, learning_rate=1.0, optimizer="lbfgs", loss=loss, n_epochs=150, n_init=3, random_state=0)
    model.fit_cooccurrence(omega)
    found = cooccurrences(torch.from_numpy(model.transmat_), torch.from_numpy(model.emissionprob_)).numpy()
    assert_close(found, omega, 1e-3)
    assert_close(model.startprob_ @ model.transmat_, model.startprob_)
    assert model.losses_[-1] < model.losses_[0]
    assert np.isfinite(model.score([0, 4, 2]))


def test_learning_from_counts_is_learning_from_their_frequencies() -> None:
    X, lengths = [0, 1, 1, 2, 0, 2, 1], [3, 4]
    omega = np.zeros((3, 3))
    for i, j in ((0, 1), (1, 1), (2, 0), (0, 2), (2, 1)):
        omega[i, j] += 0.2
    options = {"learning": "cooccurrence", "n_epochs": 20, "random_state": 0}
    counted = DenseHMM(2, 2, **options).fit(X, lengths)
    given = DenseHMM(2, 2, **options).fit_cooccurrence(omega)
    assert_close(counted.transmat_, given.transmat_)


def test_many_symbols_and_restarts() -> None:
    """Beyond so many symbols the co-occurrences are sparse."""
    X = np.random.RandomState(0).randint(DENSE_SYMBOLS + 50, size=400)
    model = DenseHMM(2, 2, learning="cooccurrence", n_epochs=3, n_init=2, learning_rate=0.1, random_state=0).fit(X)
    assert model.losses_[-1] < model.losses_[0]
    assert np.isfinite(model.score(X))


def test_partial_fit() -> None:
    X, lengths = data()
    once = DenseHMM(3, 2, **SETTINGS | {"n_iter": 1}).fit(X, lengths)
    model = DenseHMM(3, 2, n_features=6, **SETTINGS).partial_fit(X, lengths)
    assert_close(model.transmat_, once.transmat_)
    scores = [model.partial_fit(X, lengths).score(X, lengths) for _ in range(5)]
    assert scores[-1] > scores[0]


def test_priors_pull() -> None:
    options = {"optimizer": "lbfgs", "learning_rate": 1.0, **SETTINGS}
    free = DenseHMM(3, 4, **options).fit(*data())
    pulled = DenseHMM(3, 4, transmat_prior=1000.0, emissionprob_prior=1000.0, **options).fit(*data())
    assert np.abs(pulled.transmat_ - 1 / 3).max() < 0.02 < np.abs(free.transmat_ - 1 / 3).max()
    assert np.abs(pulled.emissionprob_ - 1 / 6).max() < 0.02


def test_nearest_symbols_and_angles() -> None:
    model = DenseHMM(2, 2, **SETTINGS).fit("abcabcaab")
    model.v_ = np.array([[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0]])
    assert_close(model.symbol_angles(), [[0, 45, 180], [45, 0, 135], [180, 135, 0]], 1e-5)
    nearest = model.nearest_symbols("a", 2)
    assert [name for name, _ in nearest] == ["b", "c"]
    assert_close([cosine for _, cosine in nearest], [np.sqrt(0.5), -1])


@pytest.mark.parametrize("dims", [1, 2, 5])
def test_the_plot_shows_every_vector(dims: int, tmp_path: Path) -> None:
    model = DenseHMM(3, dims, **SETTINGS).fit(list("a<&b"))
    picture = model.plot(tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8") == picture
    root = ElementTree.fromstring(picture)
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 3 * 3 + 4
    names = [circle[0].text for circle in circles if circle.get("class") == "v"]
    assert names == ["&", "<", "a", "b"]
    assert all(0 <= float(circle.get("cx", "nan")) <= 900 for circle in circles)


def test_conventions() -> None:
    model = DenseHMM(3, 2, **SETTINGS).fit(*data())
    assert clone(model).get_params() == DenseHMM(3, 2, **SETTINGS).get_params()
    assert_close(pickle.loads(pickle.dumps(model)).score(*data()), model.score(*data()))
    assert DenseHMM(4, 3).n_dims == GaussianDenseHMM(4, 3).n_dims == 3
    gap = DenseHMM(2, 1, **SETTINGS).fit([0, None, 1, 1])
    assert np.isfinite(gap.score([None, 1]))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kernel": "cosine"}, "kernel"),
        ({"emission_kernel": "cosine"}, "emission_kernel"),
        ({"optimizer": "newton"}, "optimizer"),
        ({"learning": "spectral"}, "learning"),
        ({"loss": "l1"}, "loss"),
        ({"n_dims": 0}, "n_dims"),
        ({"params": "ste"}, "choose from uzsvw"),
    ],
)
def test_settings_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        DenseHMM(**{"n_components": 2} | settings).fit([0, 1])


def test_cooccurrences_refused() -> None:
    with pytest.raises(InputError, match="sum to one"):
        DenseHMM(2).fit_cooccurrence(np.eye(2))
    with pytest.raises(InputError, match="partial_fit uses EM"):
        DenseHMM(2, learning="cooccurrence").partial_fit([0, 1])
    with pytest.raises(InputError, match="no pair of adjacent"):
        DenseHMM(2, learning="cooccurrence").fit([[0, None, 1], [2]])


@pytest.mark.parametrize("case", GAUSSIANS, ids=str)
def test_gaussian_emissions(case: Any) -> None:
    X = case.data()
    model = GaussianDenseHMM(3, 2, **case.options, covars_prior=0.0, **SETTINGS).fit(X, LENGTHS)
    assert (np.diff(model.monitor_.history) > -WIGGLE).all()
    assert model.state_embeddings_.shape == (3, 4)
    scores = np.exp(model.z_ @ model.u_.T)
    assert_close(model.transmat_, scores / scores.sum(1, keepdims=True))
    weights = model.predict_proba(X, LENGTHS)
    model.set_params(init_params="", n_iter=1).fit(X, LENGTHS)
    assert_close(model.means_, weights.T @ X / weights.sum(0)[:, None])
