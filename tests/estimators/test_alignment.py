"""States put in the order of another model's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from estimator_cases import CASES, LENGTHS, STATES, Case, assert_close, parameters, set_by_hand
from scipy import integrate, stats

from trellis import TrellisError
from trellis.estimators import CategoricalHMM, DenseHMM, GaussianDenseHMM, GaussianHMM, PoissonHMM
from trellis.estimators.alignment import distance


def shuffled(case: Case, order: list[int]) -> tuple[Any, Any]:
    """A model, and the same with its states in another order."""
    model, other = case.ours(), case.ours()
    for one in (model, other):
        set_by_hand(one)
        one._check()
    other._reorder(np.array(order))
    return model, other


@pytest.mark.parametrize("order", [[1, 2, 0], [2, 1, 0], [0, 1, 2]])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_aligned_states_are_the_original_ones(case: Case, order: list[int]) -> None:
    model, other = shuffled(case, order)
    assert_close(other.startprob_, model.startprob_[order])
    assert_close(other.score(case.data(), LENGTHS), model.score(case.data(), LENGTHS))
    for options in ({}, {"X": case.data(), "lengths": LENGTHS}):
        _, other = shuffled(case, order)
        assert other.align_to(model, **options) is other
        for one, same in zip(parameters(model), parameters(other), strict=True):
            assert_close(one, same)
    if case.options.get("covariance_type") != "tied":
        assert (other.predict(case.data(), LENGTHS) == model.predict(case.data(), LENGTHS)).all()


def test_restarts_become_comparable() -> None:
    random = np.random.RandomState(0)
    truth = np.repeat(random.randint(3, size=60), 6)
    X = np.array([0.0, 5.0, 10.0])[truth][:, None] + random.randn(360, 1)
    first, *others = (GaussianHMM(3, random_state=seed, n_iter=40, init_params="mc") for seed in range(5))
    for model in (first, *others):
        model.startprob_, model.transmat_ = np.full(3, 1 / 3), 0.7 * np.eye(3) + 0.1
        model.fit(X)
    assert any(np.abs(other.means_ - first.means_).max() > 1 for other in others)
    for other in others:
        np.testing.assert_allclose(other.align_to(first).means_, first.means_, atol=0.1)


def test_dense_hmms_keep_their_vectors() -> None:
    X = np.random.RandomState(0).randint(4, size=(40, 1))
    for model in (DenseHMM(3, random_state=0, n_iter=2), GaussianDenseHMM(3, random_state=0, n_iter=2)):
        model.fit(X)
        before, score = model.transmat_.copy(), model.score(X)
        model._reorder(np.array([2, 0, 1]))
        assert_close(model.transmat_, before[np.ix_([2, 0, 1], [2, 0, 1])])
        assert_close(model.score(X), score)
        assert_close(model.compose().score(X), score)


def test_distances_are_integrals() -> None:
    """-log of the integral, or sum, of sqrt(p q)."""
    gaussians = []
    for seed in range(2):
        model = GaussianHMM(2)
        model.startprob_, model.transmat_ = [0.5, 0.5], np.eye(2)
        random = np.random.RandomState(seed)
        model.means_, model.covars_ = random.randn(2, 1), random.uniform(0.5, 2, (2, 1))
        gaussians.append(model)
    found = distance(*(model._emission() for model in gaussians))
    for i in range(2):
        for j in range(2):
            p, q = (
                stats.norm(model.means_[k, 0], np.sqrt(model.covars_[k, 0, 0]))
                for model, k in zip(gaussians, (i, j), strict=True)
            )
            overlap, _ = integrate.quad(lambda x, p=p, q=q: np.sqrt(p.pdf(x) * q.pdf(x)), -20, 20)
            assert_close(float(found[i, j]), -np.log(overlap), 1e-7)
    rates = PoissonHMM(2)
    rates.lambdas_ = np.array([[2.0], [5.0]])
    n = np.arange(100)
    overlap = np.sqrt(stats.poisson(2).pmf(n) * stats.poisson(5).pmf(n)).sum()
    assert_close(float(distance(rates._emission(), rates._emission())[0, 1]), -np.log(overlap))
    symbols = CategoricalHMM(2, n_features=3)
    symbols.emissionprob_ = np.array([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4]])
    overlap = np.sqrt(symbols.emissionprob_[0] * symbols.emissionprob_[1]).sum()
    assert_close(float(distance(symbols._emission(), symbols._emission())[0, 1]), -np.log(overlap))
    assert torch.isfinite(distance(symbols._emission(), symbols._emission())).all()


def test_what_cannot_be_aligned() -> None:
    X = [0, 1, 2, 1, 0, 2, 2]
    two, three = CategoricalHMM(2, random_state=0).fit(X), CategoricalHMM(STATES, random_state=0).fit(X)
    with pytest.raises(TrellisError, match="have 2 and 3 states"):
        two.align_to(three)
    tied = CategoricalHMM(2, random_state=0, tied_emissions=[0, 1]).fit(X)
    assert_close(tied.align_to(tied).startprob_, tied.startprob_)
    with pytest.raises(TrellisError, match="tied_emissions refers to states by number"):
        tied._reorder(np.array([1, 0]))
    with pytest.raises(TrellisError, match="compared by their posteriors; pass X"):
        distance(object(), None)  # type: ignore[arg-type]
