"""hmmlearn's hooks: subclasses that override them compute the same here as there."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from estimator_cases import CASES, CATEGORICAL, CLASSES, GAUSSIANS, LENGTHS, Case, assert_close, parameters, set_by_hand

from trellis.errors import InputError
from trellis.estimators import hooks
from trellis.estimators.variational import VariationalCategoricalHMM
from trellis.hmm import BaseHMM, CategoricalHMM, GaussianHMM

ITERATIONS = 20


def exponential(base: type) -> type:
    """An HMM with exponential waiting times, as hmmlearn's tutorial would have it written."""

    class ExponentialHMM(base):  # type: ignore[misc, valid-type]
        def _init(self, X: Any, lengths: Any = None) -> None:
            super()._init(X, lengths)
            if self._needs_init("r", "rates_"):
                self.rates_ = (1 + np.arange(self.n_components)) / X.mean()

        def _check(self) -> None:
            super()._check()
            if (np.asarray(self.rates_) <= 0).any():
                raise ValueError("rates_ must be positive")

        def _get_n_fit_scalars_per_param(self) -> dict[str, int]:
            states = self.n_components
            return dict.fromkeys("abcdefghijklmnopquvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", 0) | {
                "s": states - 1, "t": states * (states - 1), "r": states,
            }  # fmt: skip

        def _compute_log_likelihood(self, X: Any) -> Any:
            return np.log(self.rates_) - X * self.rates_

        def _initialize_sufficient_statistics(self) -> dict[str, Any]:
            return super()._initialize_sufficient_statistics() | {"post": 0.0, "obs": 0.0}

        def _accumulate_sufficient_statistics(
            self, stats: Any, X: Any, lattice: Any, posteriors: Any, fwdlattice: Any, bwdlattice: Any
        ) -> None:
            super()._accumulate_sufficient_statistics(stats, X, lattice, posteriors, fwdlattice, bwdlattice)
            stats["post"] = stats["post"] + posteriors.sum(0)
            stats["obs"] = stats["obs"] + posteriors.T @ X[:, 0]

        def _do_mstep(self, stats: dict[str, Any]) -> None:
            super()._do_mstep(stats)
            if "r" in self.params:
                self.rates_ = stats["post"] / stats["obs"]

        def _generate_sample_from_state(self, state: int, random_state: Any = None) -> Any:
            return random_state.exponential(1 / self.rates_[state], size=1)

    return ExponentialHMM


def times(seed: int = 0) -> np.ndarray:
    random = np.random.RandomState(seed)
    return random.exponential(1 + 9 * random.randint(2, size=(sum(LENGTHS), 1)))


@pytest.mark.parametrize("implementation", ["log", "scaling"])
def test_an_emission_of_ones_own(implementation: str) -> None:
    base = pytest.importorskip("hmmlearn.base").BaseHMM
    options = {"n_iter": ITERATIONS, "tol": -np.inf, "random_state": 2, "implementation": implementation}
    ours, theirs = (exponential(kind)(2, **options).fit(times(), LENGTHS) for kind in (BaseHMM, base))
    X = times(1)
    assert_close(list(ours.monitor_.history), list(theirs.monitor_.history))
    for name in ("startprob_", "transmat_", "rates_"):
        assert_close(getattr(ours, name), getattr(theirs, name))
    assert_close(ours.score(X, LENGTHS), theirs.score(X, LENGTHS))
    assert_close(ours.predict_proba(X, LENGTHS), theirs.predict_proba(X, LENGTHS))
    np.testing.assert_array_equal(ours.predict(X, LENGTHS), theirs.predict(X, LENGTHS))
    assert_close(ours.bic(X, LENGTHS), theirs.bic(X, LENGTHS))
    for one, other in zip(ours.sample(9, random_state=4), theirs.sample(9, random_state=4), strict=True):
        assert_close(one, other)
    ours.rates_ = [-1.0, 1.0]
    with pytest.raises(ValueError, match="rates_ must be positive"):
        ours.score(X)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_defaults_of_the_hooks_are_the_plain_fit(case: Case) -> None:
    class Hooked(CLASSES[case.name]):  # type: ignore[misc]
        def _do_mstep(self, stats: dict[str, Any]) -> None:
            super()._do_mstep(stats)

    options = {"random_state": 5, "n_iter": 6, "tol": -np.inf, **case.options}
    plain, hooked = case.ours(**{k: v for k, v in options.items() if k not in case.options}), Hooked(3, **options)
    for model in (plain, hooked):
        model.fit(case.data(), LENGTHS)
    assert_close(list(plain.monitor_.history), list(hooked.monitor_.history))
    hooked.__class__ = CLASSES[case.name]
    for one, other in zip(parameters(plain), parameters(hooked), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_statistics_have_the_names_and_values_of_hmmlearn(case: Case) -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    seen: list[dict[str, Any]] = []

    def spying(base: type) -> Any:
        class Spy(base):  # type: ignore[misc, valid-type]
            def _do_mstep(self, stats: dict[str, Any]) -> None:
                seen.append(stats)

        model = Spy(3, init_params="", n_iter=1, **case.options)
        set_by_hand(model)
        return model.fit(case.data(), LENGTHS)

    spying(CLASSES[case.name]), spying(getattr(hmm, case.name))
    ours, theirs = seen
    unused = {"obs**2"} if case.options.get("covariance_type") in ("full", "tied") else set()
    assert set(ours) == set(theirs) - unused
    for name, value in ours.items():
        assert_close(value, theirs[name])


def test_likelihoods_instead_of_their_logarithms() -> None:
    class Logarithm(CategoricalHMM):
        def _compute_log_likelihood(self, X: Any) -> Any:
            return 2 * np.log(self.emissionprob_[:, X[:, 0]].T)

    class Plain(CategoricalHMM):
        def _compute_likelihood(self, X: Any) -> Any:
            return self.emissionprob_[:, X[:, 0]].T ** 2

    models = [kind(3, init_params="", n_iter=3) for kind in (Logarithm, Plain, CategoricalHMM)]
    X = CATEGORICAL.data()
    for model in models:
        set_by_hand(model)
    assert_close(models[0].score(X, LENGTHS), models[1].score(X, LENGTHS))
    assert models[0].score(X, LENGTHS) < models[2].score(X, LENGTHS)
    squared = models[2]._compute_log_likelihood(X)
    assert_close(models[0]._compute_log_likelihood(X), 2 * squared)
    assert_close(models[1]._compute_likelihood(X), np.exp(2 * squared))
    for model in models:
        model.fit(X, LENGTHS)
    assert_close(models[0].emissionprob_, models[1].emissionprob_)


def test_an_initialisation_of_ones_own() -> None:
    class Ordered(GaussianHMM):
        def _init(self, X: Any, lengths: Any = None) -> None:
            super()._init(X, lengths)
            self.means_ = np.sort(self.means_, axis=0)

    means = Ordered(3, n_iter=0, random_state=0).fit(GAUSSIANS[1].data(), LENGTHS).means_
    assert (np.diff(means, axis=0) > 0).all()


def test_samples_of_ones_own() -> None:
    class Rounded(GaussianHMM):
        def _generate_sample_from_state(self, state: int, random_state: Any = None) -> Any:
            return np.round(super()._generate_sample_from_state(state, random_state))

    model = Rounded(3, random_state=0).fit(GAUSSIANS[1].data())
    X, _ = model.sample(20)
    np.testing.assert_array_equal(X, np.round(X))


def test_hooks_of_variational_models() -> None:
    class Hooked(VariationalCategoricalHMM):
        def _do_mstep(self, stats: dict[str, Any]) -> None:
            super()._do_mstep(stats)

    X, options = CATEGORICAL.data(), {"random_state": 0, "n_iter": 4, "tol": -np.inf}
    plain, hooked = (kind(3, **options).fit(X, LENGTHS) for kind in (VariationalCategoricalHMM, Hooked))
    assert_close(list(plain.monitor_.history), list(hooked.monitor_.history))
    assert_close(plain.emissionprob_posterior_, hooked.emissionprob_posterior_)


def test_a_model_that_has_no_emission_still_samples_states() -> None:
    model = BaseHMM(2, random_state=0)
    model.startprob_, model.transmat_ = [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]
    X, states = model.sample(10)
    assert X.shape == (10, 0)
    assert len(states) == 10
    with pytest.raises(InputError, match="override _compute_log_likelihood"):
        model.score([[0.0]])


def test_what_cannot_be_honoured_is_refused() -> None:
    class Own(CategoricalHMM):
        def _do_mstep(self, stats: dict[str, Any]) -> None:
            super()._do_mstep(stats)

    with pytest.raises(InputError, match="n_init and early_stopping do not apply"):
        Own(2, n_init=2).fit([0, 1, 1])
    with pytest.raises(InputError, match="partial_fit does not apply"):
        Own(2).partial_fit([0, 1, 1])
    with pytest.raises(InputError, match="overrides _fit_log, which Trellis does not call"):

        class Ignored(CategoricalHMM):
            def _fit_log(self, X: Any) -> None: ...


def test_classes_without_overridden_hooks_take_the_plain_path() -> None:
    with (
        patch.object(hooks, "fit", side_effect=AssertionError) as fit,
        patch.object(hooks, "read", side_effect=AssertionError) as read,
    ):
        for case in CASES:
            case.ours(n_iter=1).fit(case.data(), LENGTHS).score(case.data(), LENGTHS)
    assert not fit.called
    assert not read.called


@pytest.mark.parametrize("case", CASES, ids=str)
def test_called_directly(case: Case) -> None:
    """As hmmlearn's own tests do."""
    X = case.data()
    model = case.ours(random_state=0)
    model._init(X, LENGTHS)
    model._check()
    fitted = case.ours(random_state=0, n_iter=0).fit(X, LENGTHS)
    for one, other in zip(parameters(model), parameters(fitted), strict=True):
        assert_close(one, other)
    assert_close(model._compute_log_likelihood(X[:7]).shape, (7, 3))
    assert model._get_n_fit_scalars_per_param() == model.free_parameters()
