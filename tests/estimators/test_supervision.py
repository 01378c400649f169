"""Weights of sequences, states known in part, and sequences named by a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from estimator_cases import CASES, CATEGORICAL, GAUSSIANS, LENGTHS, STATES, Case, assert_close, parameters, set_by_hand

from trellis import TrellisError
from trellis.estimators import CategoricalHMM, DenseHMM, GaussianDenseHMM, GaussianHMM, PoissonHMM
from trellis.learning.em import expect_whole
from trellis.testing.oracle import Paths

pd = pytest.importorskip("pandas", reason="pandas is missing")
WEIGHTS = [2, 0, 1, 3, 1]


def repeated(X: np.ndarray) -> tuple[np.ndarray, list[int]]:
    parts = np.split(X, np.cumsum(LENGTHS)[:-1])
    several = [part for part, weight in zip(parts, WEIGHTS, strict=True) for _ in range(weight)]
    return np.concatenate(several), [len(part) for part in several]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_integer_weights_are_repetitions(case: Case) -> None:
    X = case.data()
    models = [case.ours(init_params="", n_iter=8, tol=-np.inf) for _ in range(2)]
    for model in models:
        set_by_hand(model)
    weighted, several = models
    weighted.fit(X, LENGTHS, sample_weight=WEIGHTS)
    several.fit(*repeated(X))
    assert_close(list(weighted.monitor_.history), list(several.monitor_.history))
    for one, other in zip(parameters(weighted), parameters(several), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_integer_weights_are_repetitions_in_partial_fit(case: Case) -> None:
    X = case.data()
    models = [case.ours(), case.ours()]
    for model in models:
        set_by_hand(model)
    for _ in range(3):
        models[0].partial_fit(X, LENGTHS, sample_weight=WEIGHTS)
        models[1].partial_fit(*repeated(X))
    for one, other in zip(*map(parameters, models), strict=True):
        assert_close(one, other)


def test_weights_of_dense_hmms_and_of_restarts() -> None:
    X = CATEGORICAL.data()
    for kind in (DenseHMM, GaussianDenseHMM):
        one, other = (kind(2, random_state=0, n_iter=0, mstep_epochs=5).fit(X, LENGTHS) for _ in range(2))
        for model in (one, other):
            model.set_params(init_params="", n_iter=3)
        assert_close(one.fit(X, LENGTHS, sample_weight=WEIGHTS).transmat_, other.fit(*repeated(X)).transmat_, 1e-6)
    both = CategoricalHMM(2, random_state=0, n_init=3, n_features=6, early_stopping=True, n_iter=4)
    both.fit(X, LENGTHS, sample_weight=WEIGHTS)
    assert len(both.validation_scores_) > 0


def test_weights_of_sequences_that_underflow() -> None:
    """Only log space finds them possible; they count with their weights all the same."""
    model = GaussianHMM(2, init_params="", params="stmc", n_iter=1)
    model.startprob_, model.transmat_ = [1.0, 1e-315], np.eye(2)
    model.means_, model.covars_ = [[0.0], [100.0]], [[1.0], [1.0]]
    X, lengths = [[100.0], [100.0], [0.5], [0.0]], [2, 2]
    model.fit(X, lengths, sample_weight=[3.0, 1.0])
    assert_close(model.startprob_, [0.25, 0.75])
    model.startprob_, model.transmat_ = [1.0, 1e-315], np.eye(2)
    model.means_, model.covars_ = [[0.0], [100.0]], [[1.0], [1.0]]
    X, lengths = [[0.5], [0.0], [100.0], [100.0], [0.1], [0.2]], [2, 2, 2]
    model.fit(X, lengths, sample_weight=[1.0, 3.0, 4.0])
    assert_close(model.startprob_, [0.625, 0.375])


def test_weights_of_any_size() -> None:
    """Counts are linear in the weights."""
    model = CATEGORICAL.ours()
    set_by_hand(model)
    model._check()
    (block,) = model._blocks(model._read(list(CATEGORICAL.data()[:40].reshape(4, 10)), None))
    weights = torch.tensor([0.3, 2.5, 1e-3, 7.0], dtype=torch.float64)
    parts = model._parts()
    found = expect_whole(parts, block.observations, block.lengths, weights=weights)
    alone = [expect_whole(parts, block.observations[i : i + 1], block.lengths[i : i + 1]) for i in range(4)]
    for i, value in enumerate(found):
        assert_close(value, sum(w * one[i] for w, one in zip(weights, alone, strict=True)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_known_states_against_enumeration(case: Case) -> None:
    """The expected counts of paths through the known states, with a gap in the observations too."""
    model = case.ours(missing_values=-9)
    set_by_hand(model)
    model._check()
    X, states = case.data()[:6].copy(), np.array([-1, 2, -1, 0, -1, -1])
    X[[1, 4]] = -9
    (block,) = model._blocks(model._annotated(X, None, None, states, fitting=False))
    weights = model._emission().potentials(block.observations).gather()[0].exp().numpy()
    weights[states >= 0] *= np.eye(STATES)[states[states >= 0]]
    truth = Paths(model.startprob_, np.broadcast_to(model.transmat_, (5, STATES, STATES)), weights)
    for w in (None, torch.tensor([2.0], dtype=torch.float64)):
        scale = 1.0 if w is None else 2.0
        found = expect_whole(model._parts(), block.observations, block.lengths, block.states, w)
        assert_close(found.log_likelihood, scale * np.log(truth.likelihood))
        assert_close(found.start, scale * truth.smoothed()[0])
        assert_close(found.transition, scale * truth.pairs().sum(0))
        visits = scale * truth.smoothed()[[0, 2, 3, 5]]
        rows = [0, 2, 3, 5] if case.name != "CategoricalHMM" else X[[0, 2, 3, 5], 0].tolist()
        table = torch.zeros(model.n_features if case.name == "CategoricalHMM" else 6, STATES, dtype=torch.float64)
        table.index_add_(0, torch.tensor(rows), torch.from_numpy(visits))
        assert_close(found.emission, model._emission().statistics(block.observations, table))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_known_everywhere_means_counting(case: Case) -> None:
    X, states = case.data(), np.random.RandomState(5).randint(STATES, size=sum(LENGTHS))
    model = case.ours(random_state=0, n_iter=3, tol=-np.inf).fit(X, LENGTHS, states=states)
    pairs, firsts = np.zeros((STATES, STATES)), np.zeros(STATES)
    for part in np.split(states, np.cumsum(LENGTHS)[:-1]):
        firsts[part[0]] += 1
        np.add.at(pairs, (part[:-1], part[1:]), 1)
    assert_close(model.startprob_, firsts / firsts.sum())
    assert_close(model.transmat_, pairs / pairs.sum(1, keepdims=True))
    if case.name == "GaussianHMM":
        assert_close(model.means_, [X[states == k].mean(0) for k in range(STATES)])


@pytest.mark.parametrize("unknown", [-1, None, np.nan, "NA", "masked"])
def test_a_few_labels_name_the_states(unknown: Any) -> None:
    random = np.random.RandomState(1)
    truth = np.repeat(random.randint(2, size=40), 8)
    X, known = truth[:, None] * 3.0 + random.randn(320, 1), random.rand(320) < 0.05
    given: Any = np.where(known, truth, -1)
    if unknown == "masked":
        given = np.ma.masked_array(truth, ~known)
    elif unknown == "NA":
        given = pd.array([int(s) if k else None for s, k in zip(truth, known, strict=True)], dtype="Int64")
        given = pd.Series(given)
    elif unknown != -1:
        given = [int(s) if k else unknown for s, k in zip(truth, known, strict=True)]
    lengths = [160, 160]
    for model, data in (
        (GaussianHMM(2, random_state=0, n_iter=20), X),
        (CategoricalHMM(2, random_state=0, n_iter=20), (X[:, 0] > 1.5).astype(int)),
        (PoissonHMM(2, random_state=0, n_iter=20), np.clip(X.round(), 0, None) * 3),
    ):
        model.fit(data, lengths, states=given)
        assert (model.predict(data, lengths) == truth).mean() > 0.9
    flipped = GaussianHMM(2, random_state=0, n_iter=20).fit(X, lengths, states=np.where(known, 1 - truth, -1))
    assert (flipped.predict(X, lengths) == 1 - truth).mean() > 0.9


def test_labels_and_weights_that_do_not_fit() -> None:
    model, X = CategoricalHMM(2), [0, 1, 1, 0]
    for states, message in (
        ([0, 1], "states has 2 entries, but X has 4 samples"),
        ([0, 1, 2, 0], "states must be integers from 0 to 1"),
        ([0.5, 1, 1, 0], "states must be integers"),
        (["a", "b", "a", "a"], "states must be integers"),
    ):
        with pytest.raises(TrellisError, match=message):
            model.fit(X, states=states)
    for weights, message in (
        ([1.0, 2.0, 3.0], "one weight for each of the 2 sequences"),
        ([1.0, -2.0], "finite and not negative"),
        ([0.0, 0.0], "not all zero"),
        ([np.nan, 1.0], "finite"),
    ):
        with pytest.raises(TrellisError, match=message):
            model.fit(X, [2, 2], sample_weight=weights)
    with pytest.raises(TrellisError, match='apply to learning="em" only'):
        DenseHMM(2, learning="cooccurrence").fit(X, states=[0, 1, 0, 1])


def frame(case: Case) -> Any:
    X = case.data()
    names = np.random.RandomState(0).choice(["u2", "u10", "a"], size=len(X))
    return pd.DataFrame({f"x{i}": column for i, column in enumerate(X.T)} | {"user": names})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_column_that_names_the_sequence(case: Case) -> None:
    data = frame(case)
    values = data.drop(columns="user").to_numpy()
    names = list(dict.fromkeys(data.user))
    parts = [values[(data.user == name).to_numpy()] for name in names]
    columns = [part if case.name != "CategoricalHMM" else part[:, 0] for part in parts]
    named, listed = case.ours(random_state=0, sequence_id="user"), case.ours(random_state=0)
    named.fit(data)
    listed.fit(columns)
    joined = case.ours(random_state=0).fit(np.concatenate(parts), [len(part) for part in parts])
    for one, other, third in zip(*map(parameters, (named, listed, joined)), strict=True):
        assert_close(one, other)
        assert_close(one, third)
    assert_close(named.score(data), listed.score(columns))
    assert_close(named.bic(data), listed.bic(columns))
    posterior, states = named.predict_proba(data), named.predict(data)
    for name, column in zip(names, columns, strict=True):
        here = (data.user == name).to_numpy()
        assert_close(posterior[here], listed.predict_proba(column))
        assert (states[here] == listed.predict(column)).all()


def test_labels_and_weights_of_named_sequences() -> None:
    data = frame(GAUSSIANS[1])
    states = (data.x0 > 4).astype(int).to_numpy()
    order = np.argsort([list(dict.fromkeys(data.user)).index(name) for name in data.user], kind="stable")
    lengths = [int((data.user == name).sum()) for name in dict.fromkeys(data.user)]
    named = GaussianHMM(2, random_state=0, sequence_id="user").fit(data, states=states, sample_weight=[1, 2, 3])
    sorted_ = data.drop(columns="user").iloc[order]
    plain = GaussianHMM(2, random_state=0).fit(sorted_, lengths, states=states[order], sample_weight=[1, 2, 3])
    for one, other in zip(parameters(named), parameters(plain), strict=True):
        assert_close(one, other)


def test_columns_that_do_not_name_sequences() -> None:
    data, model = frame(GAUSSIANS[1]), GaussianHMM(2, sequence_id="who")
    with pytest.raises(TrellisError, match="X has no column 'who'"):
        model.fit(data)
    with pytest.raises(TrellisError, match="X must be a DataFrame with this column"):
        model.fit(data.to_numpy())
    model.set_params(sequence_id="user")
    with pytest.raises(TrellisError, match="lengths and sequence_id both"):
        model.fit(data, [len(data)])
    data.loc[3, "user"] = None
    with pytest.raises(TrellisError, match="has no value in row 3"):
        model.fit(data)
