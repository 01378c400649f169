"""Gaussian and Poisson emissions beside scipy, and their M-steps beside the maximum that they claim to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from trellis.emissions import Vectors
from trellis.emissions.covariances import COVARIANCES, GaussianPrior, cholesky
from trellis.emissions.gaussian import Gaussian
from trellis.emissions.poisson import GammaPrior, Poisson
from trellis.errors import InputError

STATES, FEATURES, SAMPLES, TOLERANCE = 3, 2, 40, 1e-10
KINDS = list(COVARIANCES)


@pytest.fixture
def random() -> np.random.RandomState:
    return np.random.RandomState(0)


def gaussian(random: np.random.RandomState, kind: str) -> Gaussian:
    root = torch.from_numpy(random.randn(STATES, FEATURES, FEATURES))
    full = root @ root.mT + torch.eye(FEATURES)
    covars = {"full": full, "tied": full[0], "diag": full.diagonal(dim1=1, dim2=2), "spherical": full[:, 0, 0]}[kind]
    return Gaussian(torch.from_numpy(random.randn(STATES, FEATURES)), covars, kind)


def no_prior(weight: float = 1.0) -> GaussianPrior:
    return GaussianPrior(*(torch.tensor(value) for value in (0.0, 0.0, 0.0, weight)))


def assert_close(one: Tensor, other: Tensor | np.ndarray) -> None:
    np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_density(random: np.random.RandomState, kind: str) -> None:
    emission, x = gaussian(random, kind), random.randn(SAMPLES, FEATURES)
    matrices = emission.kind.full(emission.covars, STATES, FEATURES)
    assert matrices.shape == (STATES, FEATURES, FEATURES)
    assert emission.covars.shape == emission.kind.shape(STATES, FEATURES)
    expected = [stats.multivariate_normal(m, c).logpdf(x) for m, c in zip(emission.means, matrices, strict=True)]
    assert_close(emission.log_density(torch.from_numpy(x)), np.transpose(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_densities_from_monomials_where_they_are_accurate(random: np.random.RandomState, kind: str) -> None:
    """One product where the data are near the origin, centred observations where they are far from it."""
    emission, x = gaussian(random, kind), torch.from_numpy(random.randn(SAMPLES, FEATURES))
    for values, accurate in ((x, True), (x + 1e3, False)):
        found = emission.from_monomials(emission.basis, values)
        assert (found is not None) == accurate
        assert_close(emission.log_density(values), emission.kind.log_density(values, emission.means, emission.covars))


@pytest.mark.parametrize("kind", KINDS)
def test_monomials_are_kept_until_the_means_are_far_from_their_origin(random: np.random.RandomState, kind: str) -> None:
    emission, x = gaussian(random, kind), torch.from_numpy(random.randn(SAMPLES, FEATURES))
    observed, visits = Vectors(x, torch.arange(SAMPLES)[None]), torch.from_numpy(random.rand(SAMPLES, STATES))
    later = emission.maximised(emission.statistics(observed, visits), no_prior())
    assert later.basis is emission.basis
    assert later.basis.of(x)[0] is emission.basis.of(x)[0]
    far = Gaussian(later.means + 1e5, later.covars, kind, basis=later.basis)
    assert far.basis is not later.basis
    assert_close(far.origin[0], far.means.mean(0))


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_estimates_maximise_the_expected_likelihood(random: np.random.RandomState, kind: str) -> None:
    """No small change of any parameter makes the weighted log-likelihood larger."""
    emission, x = gaussian(random, kind), torch.from_numpy(random.randn(SAMPLES, FEATURES))
    visits = torch.from_numpy(random.dirichlet(np.ones(STATES), SAMPLES))
    found = emission.maximised(emission.statistics(Vectors(x, torch.arange(SAMPLES)[None]), visits), no_prior())
    best = [p.requires_grad_() for p in (found.means, found.covars)]
    (visits * Gaussian(*best, kind).log_density(x)).sum().backward()
    for parameter in best:
        assert_close(parameter.grad, np.zeros(parameter.shape))


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_states_never_visited_stay(random: np.random.RandomState, kind: str) -> None:
    emission = gaussian(random, kind)
    seen = Vectors(torch.ones(1, FEATURES).double(), torch.zeros(1, 1).long())
    found = emission.maximised(emission.statistics(seen, torch.zeros(1, STATES).double()), no_prior())
    assert_close(found.means, emission.means)
    assert_close(found.covars, emission.covars)


@pytest.mark.parametrize("kind", KINDS)
def test_covariances_from_one_matrix(random: np.random.RandomState, kind: str) -> None:
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    covars = COVARIANCES[kind].for_states(covariance, STATES)
    assert covars.shape == COVARIANCES[kind].shape(STATES, FEATURES)
    free = {"spherical": STATES, "diag": STATES * FEATURES, "full": STATES * 3, "tied": 3}
    assert COVARIANCES[kind].free(STATES, FEATURES) == free[kind]


def test_nearly_singular_covariances_are_nudged() -> None:
    flat = torch.full((1, 2, 2), 1e10, dtype=torch.float64)
    assert cholesky(flat).isfinite().all()
    assert cholesky(torch.ones(1, 2, 2)).isfinite().all()
    with pytest.raises(InputError, match="positive definite"):
        cholesky(-torch.eye(2)[None])


def test_poisson_density(random: np.random.RandomState) -> None:
    rates, x = random.uniform(0.5, 9, (STATES, FEATURES)), random.poisson(4, (SAMPLES, FEATURES))
    rates[0, 0] = 0.0
    density = Poisson(torch.from_numpy(rates)).log_density(torch.from_numpy(x.astype(float)))
    assert_close(density, np.transpose([stats.poisson(rate).logpmf(x).sum(1) for rate in rates]))


def test_poisson_rate_of_zero() -> None:
    rates, x = torch.tensor([[0.0, 2.0]]).double(), torch.tensor([[0.0, 1.0], [1.0, 1.0]]).double()
    density = Poisson(rates).log_density(x)
    assert_close(density[0, 0], stats.poisson(2).logpmf(1))
    assert density[1, 0] == -np.inf


def test_poisson_estimates_are_weighted_means(random: np.random.RandomState) -> None:
    x, visits = (
        torch.from_numpy(random.poisson(4.0, (SAMPLES, FEATURES)).astype(float)),
        torch.rand(SAMPLES, STATES).double(),
    )
    visits[:, 2] = 0.0
    old, zero = torch.ones(STATES, FEATURES).double(), torch.tensor(0.0)
    statistics = Poisson(old).statistics(Vectors(x, torch.arange(SAMPLES)[None]), visits)
    rates = Poisson(old).maximised(statistics, GammaPrior(zero, zero)).rates
    assert_close(rates[:2], [np.average(x, 0, visits[:, z]) for z in range(2)])
    assert_close(rates[2], old[2])
