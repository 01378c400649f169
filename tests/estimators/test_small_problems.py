"""Small problems are solved in NumPy from end to end; the results are those of the general route through torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from estimator_cases import CASES, LENGTHS, STATES, Case, parameters

from trellis.estimators import CategoricalHMM, blocks, inference
from trellis.kernels.scan import banded

ROUNDING = {"rtol": 1e-9, "atol": 1e-11}  # of ten iterations in another order of operations


def everything(case: Case, X: Any, lengths: Any) -> list[Any]:
    """What an estimator computes: a fit of ten iterations from a seed, and every query of it."""
    model = case.ours(n_iter=10, tol=-np.inf, random_state=0).fit(X, lengths)
    log_prob, _ = model.decode(X, lengths)  # several paths may be equally probable
    return [*parameters(model), model.score(X, lengths), *model.score_samples(X, lengths), log_prob]


def with_gaps(X: np.ndarray) -> np.ma.MaskedArray[Any, Any]:
    masked = np.zeros(X.shape, bool)
    masked[[0, 5, 40, 41, 127]] = True
    return np.ma.masked_array(X, masked)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "gaps"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_routes_agree(case: Case, gaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of several lengths, and a single one; each within the limits of small problems."""
    X = with_gaps(case.data()) if gaps else case.data()
    for given, lengths in ((X, LENGTHS), (X[:60], None)):
        found = everything(case, given, lengths)
        with monkeypatch.context() as patch:
            patch.setattr(banded, "STEPS", 0)
            expected = everything(case, given, lengths)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, **ROUNDING)


def test_small_blocks_are_solved_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.arange(30) % 3
    model = CategoricalHMM(STATES, random_state=0).fit(X)
    for function in ("log_likelihood", "smooth", "viterbi"):
        monkeypatch.setattr(inference.discrete, function, None)
    monkeypatch.setattr(inference, "expect_whole", None)
    model.fit(X).score(X), model.predict_proba(X), model.predict(X)
    longer = np.tile(X, 1 + banded.STEPS // len(X))
    for query in (model.score, model.predict_proba, model.predict):
        with pytest.raises(TypeError, match="not callable"):
            query(longer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_compiled_e_step_agrees(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences long enough for the compiled E-step, with gaps, and a single one."""
    X = with_gaps(np.concatenate([case.data()] * 8))
    for given, lengths in ((X, [400, len(X) - 400]), (X, None)):
        with monkeypatch.context() as patch:
            patch.setattr(inference, "solved", None)
            patch.setattr(inference, "expect_whole", None)
            found = case.ours(n_iter=10, tol=-np.inf, random_state=0).fit(given, lengths)
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "NARROW", 0)
            patch.setattr(banded, "STEPS", 0)
            expected = case.ours(n_iter=10, tol=-np.inf, random_state=0).fit(given, lengths)
        np.testing.assert_allclose(found.monitor_.history, expected.monitor_.history, **ROUNDING)
        for one, other in zip(parameters(found), parameters(expected), strict=True):
            np.testing.assert_allclose(one, other, **ROUNDING)


def test_which_e_steps_are_compiled() -> None:
    """The choice depends on sizes alone."""
    assert not blocks.is_long((1, blocks.WORTH_COMPILING - 1), 3)
    assert blocks.is_long((1, blocks.WORTH_COMPILING), 3)
    assert blocks.is_long((1, 10**6), blocks.NARROW)
    assert not blocks.is_long((1, 1000), blocks.NARROW + 1)
    assert not blocks.is_long((100, banded.SHORT), 3)
    assert blocks.is_long((10, 1000), 3)
    assert not blocks.is_long((10, 1000), 20)


def test_an_impossible_long_sequence_takes_the_general_route() -> None:
    model = by_hand([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])
    model.fit(np.arange(1000) % 2)
    assert model.monitor_.history[-1] == -np.inf


def by_hand(transmat: list[list[float]], emissions: list[list[float]]) -> CategoricalHMM:
    model = CategoricalHMM(2, n_iter=1, init_params="")
    model.startprob_, model.transmat_, model.emissionprob_ = np.array([1.0, 0.0]), np.array(transmat), emissions
    return model


def test_what_numpy_cannot_solve_takes_the_general_route() -> None:
    """Every second step has a probability of 1e-160, so that products of two underflow the limit."""
    rare = 1e-160
    model = by_hand([[1 - rare, rare], [1 - rare, rare]], [[1.0, 0.0], [0.0, 1.0]])
    X = np.array([0, 1] * 4)
    np.testing.assert_allclose(model.score(X), 4 * np.log(rare))
    np.testing.assert_allclose(model.predict_proba(X), np.eye(2)[X], atol=1e-12)
    assert model.predict(X).tolist() == X.tolist()
    assert model.fit(X).transmat_[0, 1] == pytest.approx(1.0)


def test_an_impossible_sequence() -> None:
    model = by_hand([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])
    assert model.score([0, 1]) == -np.inf
    assert model.predict([0, 1]).shape == (2,)
