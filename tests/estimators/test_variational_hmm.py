"""Variational inference: the evidence it bounds, by enumeration and in closed form, and hmmlearn's numbers."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from estimator_cases import KINDS, LENGTHS, STATES, TOLERANCE, assert_close
from scipy import integrate, special, stats
from sklearn.base import clone

from trellis.dirichlet import divergence, expected_log
from trellis.emissions.variational import wishart_divergence
from trellis.errors import InputError
from trellis.estimators import VariationalCategoricalHMM, VariationalGaussianHMM, hooks

ITERATIONS, SYMBOLS, ROUNDING = 20, 4, 1e-9
NAMES = {
    "VariationalCategoricalHMM": ["emissionprob_posterior_", "emissionprob_"],
    "VariationalGaussianHMM": [
        "means_posterior_", "beta_posterior_", "dof_posterior_", "scale_posterior_", "means_", "_covars_",
    ],
}  # fmt: skip
CHAIN = ["startprob_posterior_", "transmat_posterior_", "startprob_", "transmat_"]
PRIORS = {"startprob_prior": 0.7, "transmat_prior": 1.3}


def symbols(seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).choice(SYMBOLS, p=[0.4, 0.3, 0.2, 0.1], size=(sum(LENGTHS), 1))


def vectors(seed: int = 0) -> np.ndarray:
    random = np.random.RandomState(seed)
    return random.randn(sum(LENGTHS), 2) * [1, 2] + 4 * random.randint(STATES, size=(sum(LENGTHS), 1))


def cases() -> list[tuple[Any, dict[str, Any], np.ndarray]]:
    gaussians = [(VariationalGaussianHMM, {"covariance_type": kind}, vectors()) for kind in KINDS]
    return [(VariationalCategoricalHMM, {}, symbols()), *gaussians]


@pytest.mark.parametrize("priors", [{}, PRIORS])
@pytest.mark.parametrize(("kind", "options", "X"), cases())
def test_the_same_numbers_as_hmmlearn(
    kind: Any, options: dict[str, Any], X: np.ndarray, priors: dict[str, Any]
) -> None:
    vhmm = pytest.importorskip("hmmlearn.vhmm")
    settings = options | priors | {"random_state": 3, "n_iter": ITERATIONS, "tol": -np.inf}
    ours, theirs = kind(STATES, **settings), getattr(vhmm, kind.__name__)(STATES, **settings)
    for model in (ours, theirs):
        model.fit(X, LENGTHS)
    assert_close(list(ours.monitor_.history), list(theirs.monitor_.history))
    for name in CHAIN + NAMES[kind.__name__]:
        assert_close(getattr(ours, name), getattr(theirs, name))
    assert_close(ours.score(X, LENGTHS), theirs.score(X, LENGTHS))
    assert_close(ours.predict_proba(X, LENGTHS), theirs.predict_proba(X, LENGTHS))
    np.testing.assert_array_equal(ours.predict(X, LENGTHS), theirs.predict(X, LENGTHS))


@pytest.mark.parametrize("params", ["s", "t", "e", "m", "st", "tmc"])
def test_training_of_some_parameters(params: str) -> None:
    vhmm = pytest.importorskip("hmmlearn.vhmm")
    kind = VariationalCategoricalHMM if "e" in params else VariationalGaussianHMM
    X, settings = symbols() if "e" in params else vectors(), {"random_state": 3, "n_iter": 5, "params": params}
    ours, theirs = kind(STATES, **settings), getattr(vhmm, kind.__name__)(STATES, **settings)
    theirs.startprob_ = theirs.transmat_ = np.ones((1, 1))  # it looks at them without setting them
    for model in (ours, theirs):
        model.fit(X, LENGTHS)
    for name in CHAIN[:2] + NAMES[kind.__name__][:1]:
        assert_close(getattr(ours, name), getattr(theirs, name))


def test_covariances_alone_are_estimated_around_the_means() -> None:
    """hmmlearn subtracts the moments of means that it did not estimate."""
    X, start = vectors(), VariationalGaussianHMM(STATES, random_state=3, n_iter=0).fit(vectors(), LENGTHS)
    model = VariationalGaussianHMM(STATES, random_state=3, n_iter=1, params="c").fit(X, LENGTHS)
    parts = start._training_parts()
    pieces = np.split(X, np.cumsum(LENGTHS)[:-1])
    weights = np.concatenate([hooks.infer(parts, hooks.log_lattice(start, parts, piece))[1] for piece in pieces])
    off, apart = X[:, None] - start.means_posterior_, start.means_posterior_ - model.means_prior_
    scatter = np.einsum("nk,nkf,nkg->kfg", weights, off, off)
    assert_close(
        model.scale_posterior_,
        model.scale_prior_ + scatter + np.einsum("k,kf,kg->kfg", model.beta_prior_, apart, apart),
    )
    assert_close(model.means_posterior_, start.means_posterior_)


def log_beta(concentration: np.ndarray) -> float:
    return float(special.gammaln(concentration).sum() - special.gammaln(concentration.sum()))


def log_evidence(x: list[int], start: np.ndarray, moves: np.ndarray, emission: np.ndarray) -> float:
    """log p(x) with the parameters integrated out, by enumeration of all paths."""
    terms = []
    for path in product(range(len(start)), repeat=len(x)):
        counts = [np.zeros_like(prior) for prior in (start, moves, emission)]
        counts[0][path[0]] += 1
        for here, there in pairwise(path):
            counts[1][here, there] += 1
        for state, symbol in zip(path, x, strict=True):
            counts[2][state, symbol] += 1
        rows = [(start, counts[0]), *zip(moves, counts[1], strict=True), *zip(emission, counts[2], strict=True)]
        terms.append(sum(log_beta(prior + count) - log_beta(prior) for prior, count in rows))
    return float(special.logsumexp(terms))


def fitted_to(x: list[int], states: int, n_iter: int) -> VariationalCategoricalHMM:
    model = VariationalCategoricalHMM(states, random_state=1, n_iter=n_iter, tol=-np.inf, emissionprob_prior=0.5)
    return model.fit(np.array(x)[:, None])


def test_the_bound_is_below_the_evidence_and_rises() -> None:
    x = [0, 1, 1, 0, 2, 2, 0, 1]
    model = fitted_to(x, 2, 30)
    priors = model.startprob_prior_, model.transmat_prior_, model.emissionprob_prior_
    bounds = list(model.monitor_.history)
    assert (np.diff(bounds) > -ROUNDING).all()
    assert bounds[-1] < log_evidence(x, *priors) < bounds[-1] + 5


def test_the_bound_by_enumeration() -> None:
    """log sum over paths of exp E[log p(x, path)], minus the divergences, at the posterior before the last step."""
    x = [0, 1, 1, 0, 2, 2]
    before, after = fitted_to(x, 2, 4), fitted_to(x, 2, 5)

    def expected(concentration: np.ndarray) -> np.ndarray:
        return special.digamma(concentration) - special.digamma(concentration.sum(-1, keepdims=True))

    names = "startprob", "transmat", "emissionprob"
    posteriors = [getattr(before, f"{name}_posterior_") for name in names]
    priors = [getattr(before, f"{name}_prior_") for name in names]
    start, moves, emission = map(expected, posteriors)
    terms = [
        start[path[0]] + sum(moves[a, b] for a, b in pairwise(path)) + emission[path, x].sum()
        for path in map(list, product(range(2), repeat=len(x)))
    ]
    apart = 0.0
    for posterior, prior in zip(posteriors, priors, strict=True):
        for q, p in zip(np.atleast_2d(posterior), np.atleast_2d(prior), strict=True):
            apart += log_beta(p) - log_beta(q) + ((q - p) * expected(q)).sum()
    assert_close(after.monitor_.history[-1], special.logsumexp(terms) - apart)


def test_one_state_of_symbols_has_the_exact_evidence() -> None:
    x = [0, 1, 1, 0, 2, 2]
    prior, counts = np.full(3, 0.5), np.bincount(x)
    assert_close(fitted_to(x, 1, 2).monitor_.history[-1], log_beta(prior + counts) - log_beta(prior))


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_one_gaussian_state_has_the_exact_evidence(kind: str) -> None:
    """The product of the predictive Student densities; the bound leaves out -N F / 2 log 2 pi."""
    X = vectors()[:12]
    model = VariationalGaussianHMM(
        1, kind, random_state=0, n_iter=3, tol=-np.inf, dof_prior=5 if kind == "tied" else [5]
    )
    model.fit(X)
    mean, beta, dof, scale = X.mean(0), 1.0, 5.0, 1e-3 * np.eye(2)
    evidence = 0.0
    for x in X:
        shape = scale * (beta + 1) / (beta * (dof - 1))
        evidence += stats.multivariate_t.logpdf(x, mean, shape, dof - 1)
        off = x - mean
        scale = scale + beta / (beta + 1) * np.outer(off, off)
        mean, beta, dof = (beta * mean + x) / (beta + 1), beta + 1, dof + 1
    assert_close(model.monitor_.history[-1] - X.size / 2 * np.log(2 * np.pi), evidence)


def test_divergences_by_quadrature() -> None:
    q, p = (2.5, 1.5), (0.7, 1.2)
    posterior, prior = torch.tensor(q).double(), torch.tensor(p).double()
    ours = float(divergence(posterior, prior, expected_log(posterior)))
    beta = integrate.quad(lambda x: stats.beta.pdf(x, *q) * (stats.beta.logpdf(x, *q) - stats.beta.logpdf(x, *p)), 0, 1)
    assert_close(ours, beta[0], 1e-7)
    one, other = stats.gamma(3.5, scale=1 / 2.0), stats.gamma(2.0, scale=1 / 0.6)  # Wishart of one dimension
    numbers = (torch.tensor(value).double() for value in (7.0, [[4.0]], 4.0, [[1.2]]))
    gamma = integrate.quad(lambda x: one.pdf(x) * (one.logpdf(x) - other.logpdf(x)), 0, 60)
    assert_close(float(wishart_divergence(*numbers)), gamma[0], 1e-7)
    logs = integrate.quad(lambda x: stats.beta.pdf(x, *q) * np.log(x), 0, 1)
    assert_close(float(expected_log(torch.tensor(q).double())[0]), logs[0], 1e-7)


@pytest.mark.parametrize(("kind", "options", "X"), cases())
def test_conventions(kind: Any, options: dict[str, Any], X: np.ndarray) -> None:
    model = kind(STATES, **options, random_state=0, n_iter=5).fit(X, LENGTHS)
    again = clone(model).fit(X, LENGTHS)
    assert again.monitor_.history == model.monitor_.history
    best = kind(STATES, **options, random_state=0, n_iter=5, n_init=3).fit(X, LENGTHS)
    assert best.monitor_.history[-1] >= model.monitor_.history[-1]
    stopped = kind(STATES, **options, random_state=0, early_stopping=True).fit(X, LENGTHS)
    assert np.isfinite(stopped.validation_scores_).all()
    assert max(stopped.validation_scores_) < 0
    stepwise = clone(model).partial_fit(X[:60]).partial_fit(X[60:])
    assert np.isfinite(stepwise.score(X))
    observations, states = model.sample(20, random_state=1)
    assert observations.shape == (20, X.shape[1])
    assert states.max() < STATES


def test_missing_observations_carry_no_information() -> None:
    X = vectors().astype(object)
    X[5] = X[30] = None
    model = VariationalGaussianHMM(STATES, random_state=0, n_iter=3).fit(X, LENGTHS)
    assert_close(model.beta_posterior_.sum(), STATES + len(X) - 2, TOLERANCE)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startprob_prior": [1.0, 2.0]}, "startprob_prior must be a number or an array of shape"),
        ({"transmat_prior": np.ones((2, 3))}, "transmat_prior must be a number or an array of shape"),
        ({"emissionprob_prior": np.ones((2, 2))}, "emissionprob_prior must be a number or an array of shape"),
    ],
)
def test_priors_of_the_wrong_shape(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        VariationalCategoricalHMM(STATES, **options).fit(symbols())
