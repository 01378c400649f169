"""Masks, tied and frozen parameters and sticky priors: exact M-steps, and EM that keeps to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from estimator_cases import (
    CASES,
    CATEGORICAL,
    EMISSION,
    GAUSSIANS,
    LENGTHS,
    MIXTURES,
    POISSON,
    STATES,
    Case,
    assert_close,
    set_by_hand,
)  # fmt: skip
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize
from sklearn.base import clone

from trellis import TrellisError
from trellis.estimators import (
    CategoricalHMM,
    DenseHMM,
    GaussianDenseHMM,
    GaussianHMM,
    ergodic,
    first_state,
    left_right,
)

FALL = 1e-8  # nats that may be lost to rounding
CYCLE = [[0, 1, 2], [2, 0, 1], [1, 2, 0]]  # each row the one before, shifted


def test_helpers() -> None:
    assert left_right(4, max_jump=2).astype(int).tolist() == [[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
    assert ergodic(3).all()
    assert ergodic(3, self_loops=False).sum() == 6
    assert first_state(3).tolist() == [True, False, False]
    with pytest.raises(TrellisError, match="max_jump is 0"):
        left_right(3, 0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_masks_stay_zero_and_the_likelihood_never_falls(case: Case) -> None:
    priors = {"covars_prior": 0.0} if case.name == "GaussianHMM" else {}
    model = case.ours(
        transmat_mask=left_right, startprob_mask=first_state, random_state=1, n_iter=25, tol=-np.inf, **priors
    )
    model.fit(case.data(), LENGTHS)
    assert_close(model.startprob_, [1, 0, 0])
    assert (model.transmat_[~left_right(STATES)] == 0).all()
    assert_close(model.transmat_.sum(1), 1)
    if case not in MIXTURES:  # components without a prior collapse, as in hmmlearn
        assert (np.diff(model.monitor_.history) > -FALL).all()
    assert model.transmat_[0, 1] > 0


CONSTRAINTS: dict[str, dict[str, Any]] = {
    "tied emissions": {"tied_emissions": ["a", "b", "a"]},
    "tied rows": {"tied_transitions": [0, 1, 0]},
    "tied cycle": {"tied_transitions": CYCLE},
    "stay or leave": {"tied_transitions": [[0, 1, 1], [1, 0, 1], [1, 1, 0]]},
    "frozen row": {"frozen_transitions": [1]},
    "frozen entries": {"frozen_transitions": np.eye(3, dtype=bool)},
    "frozen emission": {"frozen_emissions": [2]},
    "all": {
        "transmat_mask": ergodic(3, self_loops=False),
        "tied_transitions": [[9, 0, 1], [1, 9, 0], [2, 3, 9]],
        "frozen_transitions": [2],
        "tied_emissions": [0, 0, 1],
        "frozen_emissions": np.array([False, False, True]),
    },
}


def frozen_before(model: Any, data: np.ndarray) -> None:
    """Parameters for what is frozen; the others are drawn by fit."""
    set_by_hand(model)
    if model.transmat_mask is not None:
        model.transmat_ = np.where(model.transmat_mask, model.transmat_, 0)
        model.transmat_ /= model.transmat_.sum(1, keepdims=True)


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_constraints_hold_and_the_likelihood_never_falls(case: Case, name: str) -> None:
    constraints = CONSTRAINTS[name]
    if "frozen_emissions" in constraints and case == GAUSSIANS[3]:
        with pytest.raises(TrellisError, match="frozen_emissions needs a covariance for each state"):
            case.ours(**constraints).fit(case.data())
        return
    priors = {"covars_prior": 0.0} if case.name == "GaussianHMM" else {}
    model = case.ours(random_state=1, n_iter=20, tol=-np.inf, **constraints, **priors)
    frozen_before(model, case.data())
    before = {name: np.array(getattr(model, name)) for name in ("transmat_", *EMISSION[case.name])}
    model.fit(case.data(), LENGTHS)
    history = np.array(model.monitor_.history)
    assert (np.diff(history) > -FALL).all()
    assert history[-1] > history[0]
    topology = model._topology()
    assert topology is not None
    assert_close(model.transmat_[topology.frozen & topology.mask], before["transmat_"][topology.frozen & topology.mask])
    assert (model.transmat_[~topology.mask] == 0).all()
    for label in np.unique(topology.labels[topology.mask]):
        assert np.ptp(model.transmat_[(topology.labels == label) & topology.mask]) < 1e-12
    for attribute in model._emission_attributes():
        value = getattr(model, attribute)
        assert_close(value, value[topology.first])
        assert_close(value[topology.frozen_emissions], before[attribute][topology.frozen_emissions])
    again = clone(model).set_params(n_iter=1)
    for attribute, value in vars(model).items():
        if attribute.endswith("_"):
            setattr(again, attribute, value)
    again.set_params(init_params="").fit(case.data(), LENGTHS)  # fitted parameters satisfy their own constraints
    assert again.monitor_.history[-1] > history[-1] - FALL


def best_matrix(counts: np.ndarray, labels: np.ndarray, mask: np.ndarray, old: np.ndarray, frozen: np.ndarray) -> Any:
    """The tied M-step by numerical optimisation, of one logarithm per label."""
    trained = mask & ~frozen
    names = np.unique(labels[trained])

    def matrix(x: np.ndarray) -> np.ndarray:
        values = np.exp(x)[np.searchsorted(names, np.where(trained, labels, names[0]))] * trained
        return np.where(frozen, old, values)

    def loss(x: np.ndarray) -> float:
        return -float((counts[trained] * np.log(matrix(x)[trained])).sum())

    different = {tuple(sorted(labels[i, trained[i]])): i for i in range(len(mask)) if trained[i].any()}
    rows = {"type": "eq", "fun": lambda x: matrix(x).sum(1)[list(different.values())] - 1}
    found = minimize(loss, np.full(len(names), -1.0), constraints=rows, method="SLSQP", options={"ftol": 1e-10})
    assert found.success
    return matrix(found.x)


@pytest.mark.parametrize("name", ["tied rows", "tied cycle", "stay or leave", "frozen row", "frozen entries", "all"])
def test_the_m_step_of_transitions_is_the_best_one(name: str) -> None:
    model = CATEGORICAL.ours(**CONSTRAINTS[name])
    frozen_before(model, CATEGORICAL.data())
    topology = model._topology()
    assert topology is not None
    counts = np.random.RandomState(3).uniform(1, 20, (STATES, STATES)) * topology.mask
    old = np.where(topology.frozen, model.transmat_, topology.mask * 0.5)
    found = topology.tied_rows().maximised(torch.from_numpy(counts), 0.0, torch.from_numpy(old)).numpy()
    best = best_matrix(counts, topology.labels, topology.mask, old, topology.frozen)
    np.testing.assert_allclose(found, best, atol=1e-5)
    assert_close(found.sum(1), 1)


@pytest.mark.parametrize("case", [case for case in CASES if case not in MIXTURES], ids=str)
def test_tied_emissions_are_those_of_the_lumped_statistics(case: Case) -> None:
    """If every state has the same emission, it is that of a model with one state."""
    tied = case.ours(tied_emissions=[0] * STATES, random_state=0, n_iter=3, tol=-np.inf).fit(case.data(), LENGTHS)
    one = case.ours(random_state=0, n_iter=3, tol=-np.inf).set_params(n_components=1).fit(case.data(), LENGTHS)
    for name in tied._emission_attributes():
        assert_close(getattr(tied, name), np.repeat(getattr(one, name), STATES, 0))
    if case.options.get("covariance_type") == "tied":
        assert_close(tied._covars_, one._covars_)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 4), st.sampled_from([CASES[0], GAUSSIANS[1], POISSON]))
def test_random_constraints(seed: int, size: int, case: Case) -> None:
    """EM keeps to any mask, tied rows and tied emissions, and never lowers the likelihood."""
    random = np.random.RandomState(seed)
    rows = random.randint(size, size=size)
    mask = random.rand(size, size)[rows] < 0.6  # tied rows have the same zeros
    mask |= np.eye(size, dtype=bool)[random.randint(size, size=size)][rows]
    start = random.rand(size) < 0.5
    start[random.randint(size)] = True
    options = {"transmat_mask": mask, "startprob_mask": start, "tied_transitions": rows}
    model = case.ours(random_state=seed, n_iter=6, tol=-np.inf, tied_emissions=random.randint(size, size=size))
    model.set_params(n_components=size, **options).fit(case.data(seed % 7), LENGTHS)
    priors = model.get_params().get("covars_prior", 0.0)
    if not priors:
        assert (np.diff(model.monitor_.history) > -FALL).all()
    assert (model.transmat_[~mask] == 0).all()
    assert (model.startprob_[~start] == 0).all()
    for row in np.unique(rows):
        assert np.ptp(model.transmat_[rows == row], axis=0).max() < 1e-12


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_free_parameters_are_the_dimensions_of_what_can_be_drawn(name: str) -> None:
    model = CategoricalHMM(3, n_features=4, **CONSTRAINTS[name])
    frozen_before(model, CATEGORICAL.data())
    model.emissionprob_ = np.full((3, 4), 0.25)
    drawn: dict[str, list[np.ndarray]] = {"s": [], "t": [], "e": []}
    for seed in range(60):
        random, frozen = np.random.RandomState(seed), model._frozen_values()
        model.startprob_ = random.dirichlet(np.ones(3))
        model.transmat_, model.emissionprob_ = random.dirichlet(np.ones(3), 3), random.dirichlet(np.ones(4), 3)
        model._constrain("ste", frozen)
        for letter, values in drawn.items():
            values.append(np.ravel(getattr(model, model.letters[letter])).copy())
    dimensions = {c: int(np.linalg.matrix_rank(np.diff(values, axis=0), tol=1e-9)) for c, values in drawn.items()}
    assert model.free_parameters() == dimensions


def test_free_parameters_of_a_left_right_model() -> None:
    model = GaussianHMM(4, transmat_mask=left_right, startprob_mask=first_state, tied_emissions=[0, 0, 1, 1])
    model.fit(np.random.RandomState(0).randn(50, 2))
    assert model.free_parameters() == {"s": 0, "t": 3, "m": 4, "c": 4}


def test_one_row_given_and_the_others_learned() -> None:
    """hmmlearn's issue 525: NaN for what is not known."""
    model = CategoricalHMM(3, frozen_transitions=[0], random_state=0, n_iter=5)
    model.transmat_ = [[0, 1, 0], [np.nan] * 3, [np.nan] * 3]
    model.fit(np.random.RandomState(0).randint(3, size=80))
    assert_close(model.transmat_[0], [0, 1, 0])
    assert_close(model.transmat_.sum(1), 1)


def test_a_symmetric_chain_of_one_parameter() -> None:
    """pomegranate's issue 1056: [[p, 1 - p], [1 - p, p]]."""
    X = np.repeat(np.random.RandomState(0).randint(2, size=60), 4)
    model = CategoricalHMM(2, tied_transitions=[[0, 1], [1, 0]], random_state=0, n_iter=30).fit(X)
    assert_close(model.transmat_[0], model.transmat_[1, ::-1])
    assert model.free_parameters()["t"] == 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sticky_prior_adds_counts_to_the_diagonal(case: Case) -> None:
    X, kappa = case.data(), 7.5
    model = case.ours(init_params="", params="t", n_iter=1, sticky=kappa)
    set_by_hand(model)
    model._check()
    parts = model._parts()
    (counts,) = model._expect([parts], model._blocks(model._read(X, LENGTHS)))
    expected = counts.transition.numpy() + kappa * np.eye(STATES)
    assert_close(model.fit(X, LENGTHS).transmat_, expected / expected.sum(1, keepdims=True))


def test_the_history_of_a_sticky_model_is_its_posterior_and_never_falls() -> None:
    X = CATEGORICAL.data()
    model = CATEGORICAL.ours(random_state=0, n_iter=0).fit(X, LENGTHS)
    model.set_params(sticky=30.0, n_iter=40, tol=-np.inf, init_params="")
    first = model.score(X, LENGTHS) + 30 * np.log(np.diag(model.transmat_)).sum()
    history = list(model.fit(X, LENGTHS).monitor_.history)
    assert_close(history[0], first)
    assert (np.diff(history) > -FALL).all()
    loose = CATEGORICAL.ours(random_state=0, n_iter=40, tol=-np.inf).fit(X, LENGTHS)
    assert np.diag(model.transmat_).sum() > np.diag(loose.transmat_).sum()


CONFLICTS: list[tuple[dict[str, Any], str]] = [
    ({"transmat_mask": [[1, 1, 1], [0, 0, 0], [1, 1, 1]]}, "excludes every transition from state 1"),
    ({"transmat_mask": np.ones((2, 2))}, r"must be an array of \(3, 3\) truth values"),
    ({"startprob_mask": [0, 0, 0]}, "excludes every start"),
    ({"startprob_mask": [0, 2, 0]}, "truth values"),
    ({"tied_transitions": [0, 1]}, "must be labels of shape"),
    ({"tied_transitions": [[0, 1, 2], [0, 3, 4], [5, 6, 7]]}, "ties only some transitions of states 0 and 1"),
    ({"tied_transitions": [0, 0, 1], "transmat_mask": left_right}, "ties only some transitions of states 0 and 1"),
    ({"tied_emissions": [[0, 1, 2]]}, "must be labels of shape"),
    ({"frozen_transitions": [3]}, "must list states from 0 to 2"),
    ({"frozen_emissions": [0.5]}, "must list states from 0 to 2"),
    ({"tied_emissions": [0, 0, 1], "frozen_emissions": [0]}, "freezes only some of the emissions"),
    ({"tied_transitions": [0, 0, 1], "frozen_transitions": [0]}, "freezes only some of the transitions"),
    ({"frozen_transitions": [0]}, "transmat_ is not set; frozen_transitions keeps its values"),
    ({"frozen_emissions": [0]}, "emissionprob_ is not set; frozen_emissions keeps its values"),
    ({"sticky": -1.0}, "sticky is -1.0"),
]


@pytest.mark.parametrize(("options", "message"), CONFLICTS)
def test_conflicts_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TrellisError, match=message) as caught:
        CategoricalHMM(3, **options).fit([0, 1, 2, 1])
    assert "\n" not in str(caught.value)


def test_parameters_that_violate_their_constraints() -> None:
    model = CategoricalHMM(3, transmat_mask=left_right, init_params="")
    set_by_hand(model)
    with pytest.raises(TrellisError, match="for the transition from state 0 to 2, which transmat_mask excludes"):
        model.fit(CATEGORICAL.data())
    model.set_params(transmat_mask=None, startprob_mask=first_state)
    with pytest.raises(TrellisError, match="for state 1, which startprob_mask excludes"):
        model.fit(CATEGORICAL.data())
    model.set_params(startprob_mask=None, tied_transitions=[0, 0, 1])
    with pytest.raises(TrellisError, match="transmat_ has different values where tied_transitions ties them"):
        model.fit(CATEGORICAL.data())
    model.set_params(tied_transitions=None, tied_emissions=[0, 0, 1])
    with pytest.raises(TrellisError, match="emissionprob_ has different values where tied_emissions"):
        model.fit(CATEGORICAL.data())


def test_dense_hmms() -> None:
    with pytest.raises(TrellisError, match="transmat_mask does not apply to DenseHMM"):
        DenseHMM(3, transmat_mask=left_right).fit([0, 1, 2])
    with pytest.raises(TrellisError, match="tied_emissions does not apply to DenseHMM"):
        DenseHMM(3, tied_emissions=[0, 0, 1]).fit([0, 1, 2])
    X = GAUSSIANS[1].data()
    tied = GaussianDenseHMM(3, tied_emissions=[0, 0, 1], random_state=0, n_iter=3).fit(X, LENGTHS)
    assert_close(tied.means_[0], tied.means_[1])
    assert (np.diff(DenseHMM(3, random_state=0, sticky=5.0, n_iter=5).fit(X[:, 0] > 4).monitor_.history) > -FALL).all()
    loose, sticky = (GaussianDenseHMM(3, random_state=0, n_iter=5, sticky=kappa).fit(X) for kappa in (0.0, 50.0))
    assert np.diag(sticky.transmat_).sum() > np.diag(loose.transmat_).sum()
