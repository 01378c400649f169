"""The number of states, chosen by AIC, BIC or held-out likelihood."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from estimator_cases import CASES, CATEGORICAL, LENGTHS, Case, assert_close, parameters

from trellis import TrellisError
from trellis.estimators import (
    CategoricalHMM,
    FactorialHMM,
    GaussianHMM,
    PoissonHMM,
    first_state,
    left_right,
    select_states,
)


def three_levels(seed: int = 0) -> tuple[np.ndarray, list[int]]:
    random = np.random.RandomState(seed)
    states = np.repeat(random.randint(3, size=90), 4)
    return np.array([0.0, 6.0, 12.0])[states][:, None] + random.randn(360, 1), [36] * 10


@pytest.mark.parametrize("criterion", ["aic", "bic", "held-out"])
def test_the_number_of_states_that_wrote_the_data(criterion: str) -> None:
    X, lengths = three_levels()
    model = GaussianHMM(n_iter=30)
    found = select_states(model, X, lengths, [1, 2, 3, 4], criterion=criterion, n_restarts=2, random_state=0)
    assert found.best.n_components == 3 or criterion == "aic"
    merits = {"aic": lambda row: -row.aic, "bic": lambda row: -row.bic, "held-out": lambda row: row.held_out}
    assert found.best.random_state == max(found.table, key=merits[criterion]).seed
    assert found.best.n_components == max(found.table, key=merits[criterion]).n_components
    assert [(one.n_components, one.restart) for one in found.table] == [(k, r) for k in (1, 2, 3, 4) for r in (0, 1)]
    assert np.isfinite(found.best.score(X, lengths))
    assert model.n_components == 1
    assert f"8 fits, criterion={criterion!r}" in repr(found)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_criteria_are_those_of_the_models(case: Case) -> None:
    X = case.data()
    found = select_states(case.ours(n_iter=3), X, LENGTHS, (1, 2), n_restarts=2, random_state=1)
    for row in found.table:
        model = case.ours(n_iter=3).set_params(n_components=row.n_components, random_state=row.seed).fit(X, LENGTHS)
        assert_close(row.bic, model.bic(X, LENGTHS))
        assert_close(row.aic, model.aic(X, LENGTHS))
        assert_close(row.log_likelihood, model.score(X, LENGTHS))
        assert np.isnan(row.held_out)
    best = min(found.table, key=lambda one: one.bic)
    assert (found.best.n_components, found.best.random_state) == (best.n_components, best.seed)


@pytest.mark.parametrize("criterion", ["bic", "held-out"])
def test_seeds_repeat_whatever_the_number_of_jobs(criterion: str) -> None:
    X = CATEGORICAL.data()
    options: dict[str, Any] = {"criterion": criterion, "n_restarts": 2, "random_state": 3, "n_components": (2, 3)}
    one, same, two = (select_states(CategoricalHMM, X, LENGTHS, **options, n_jobs=jobs) for jobs in (1, 1, 2))
    other = select_states(CategoricalHMM, X, LENGTHS, **options | {"random_state": 4})
    for again in (same, two):
        np.testing.assert_array_equal(np.array(one.table), np.array(again.table))
        for a, b in zip(parameters(one.best), parameters(again.best), strict=True):
            np.testing.assert_array_equal(a, b)
    assert one.table != other.table


def test_held_out_sequences_are_not_trained_on() -> None:
    """With gaps, strings and symbols that only held-out sequences have."""
    words = [list("abab"), list("bbaa"), list("abba"), list("bcba"), [None, "a", "b", "b"], list("aabb")]
    found = select_states(
        CategoricalHMM(n_iter=3), words, n_components=[2], criterion="held-out", validation_fraction=0.4, random_state=0
    )
    (row,) = found.table
    order = np.random.RandomState(0)
    order.randint(2**31 - 1, size=1)
    held = np.sort(order.permutation(6)[:3])
    codes = [[None if w is None else "abc".index(w) for w in word] for word in words]
    model = CategoricalHMM(2, n_iter=3, random_state=row.seed, n_features=3)
    model.fit([codes[i] for i in range(6) if i not in held])
    assert_close(row.held_out, model.score([codes[i] for i in held]))
    assert list(found.best.symbols_) == ["a", "b", "c"]
    assert np.isfinite(found.best.score(words))


def test_constraints_that_grow_with_the_states() -> None:
    X, lengths = three_levels(1)
    model = GaussianHMM(n_iter=20, transmat_mask=functools.partial(left_right, max_jump=2), startprob_mask=first_state)
    found = select_states(model, X, lengths, (2, 3), n_restarts=2, random_state=0)
    assert {row.n_components: row.parameters for row in found.table} == {2: 0 + 1 + 4, 3: 0 + 3 + 6}
    assert (found.best.transmat_[np.tril_indices(found.best.n_components, -1)] == 0).all()


def test_misuse() -> None:
    for model, options in (
        (FactorialHMM(), {}),
        (PoissonHMM(), {"n_components": ()}),
        (PoissonHMM(), {"n_restarts": 0}),
    ):
        with pytest.raises(TrellisError, match="select_states needs an HMM estimator"):
            select_states(model, [[1], [2]], **options)  # type: ignore[arg-type]
    with pytest.raises(TrellisError, match="criterion is 'icl'; use bic or aic or held-out"):
        select_states(PoissonHMM, [[1], [2]], criterion="icl")
