"""Mixtures of Gaussians and multinomials: densities beside scipy, M-steps and samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from trellis.emissions import GaussianMixture, Multinomial, Vectors
from trellis.emissions.covariances import COVARIANCES
from trellis.emissions.mixture import MixturePrior
from trellis.testing import check_emission
from trellis.testing.close import assert_close, run_checks
from trellis.testing.emissions import CHECKS, VECTORS, Case, m_step, some_vectors
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.testing.problems import distributions, seeded

STATES, MIXED, FEATURES, SYMBOLS, TRIALS, DRAWS = 3, 2, 2, 4, 6, 2000


def mixture(kind: str, apart: float = 3.0) -> GaussianMixture:
    root = torch.randn(STATES, MIXED, FEATURES, FEATURES, generator=seeded(5), dtype=torch.float64)
    full = root @ root.mT + torch.eye(FEATURES)
    covars = {"full": full, "tied": full[:, 0], "diag": full.diagonal(dim1=2, dim2=3), "spherical": full[..., 0, 0]}
    means = apart * torch.randn(STATES, MIXED, FEATURES, generator=seeded(6), dtype=torch.float64)
    return GaussianMixture(distributions(seeded(7), STATES, MIXED), means, covars[kind], kind)


def no_prior() -> MixturePrior:
    zero = torch.zeros((), dtype=torch.float64)
    return MixturePrior(zero, zero, zero, zero, zero)


def matrices(emission: GaussianMixture) -> np.ndarray:
    covars = emission.covars.numpy()
    eye = np.eye(FEATURES)
    return {
        "spherical": lambda: covars[..., None, None] * eye,
        "diag": lambda: covars[..., None] * eye,
        "full": lambda: covars,
        "tied": lambda: np.repeat(covars[:, None], MIXED, 1),
    }[emission.kind]()


@pytest.mark.parametrize("kind", COVARIANCES)
def test_density_of_mixtures(kind: str) -> None:
    emission, x = mixture(kind), np.random.RandomState(0).randn(50, FEATURES) * 4
    weights, means, covars = emission.weights.numpy(), emission.means.numpy(), matrices(emission)
    densities = np.array([
        [np.log(weights[z, m]) + stats.multivariate_normal.logpdf(x, means[z, m], covars[z, m]) for m in range(MIXED)]
        for z in range(STATES)
    ])  # fmt: skip
    expected = special.logsumexp(densities, axis=1)
    rows = Vectors(torch.from_numpy(x), torch.arange(50)[None])
    assert_close(emission.potentials(rows).table, expected.T)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_conformance_of_mixtures(kind: str) -> None:
    """All but the check that an M-step is the maximum: that of a mixture is itself an iteration of EM."""
    emission = mixture(kind)
    checks = [check for check in CHECKS if check is not m_step] + VECTORS
    run_checks("GaussianMixture", Case(emission, no_prior(), some_vectors(emission)), checks)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_m_step_of_mixtures_by_hand(kind: str) -> None:
    emission, random = mixture(kind), np.random.RandomState(1)
    x, visits = random.randn(60, FEATURES) * 3, random.rand(60, STATES)
    statistics = emission.statistics(Vectors(torch.from_numpy(x), torch.arange(60)[None]), torch.from_numpy(visits))
    found = emission.maximised(statistics, no_prior())
    joint = emission.log_joint(torch.from_numpy(x)).numpy()
    shares = visits[..., None] * special.softmax(joint, -1)  # [N, K, M]
    assert_close(found.weights, shares.sum(0) / shares.sum((0, 2))[:, None])
    assert_close(found.means, np.einsum("nkm,nf->kmf", shares, x) / shares.sum(0)[..., None])
    off = x[:, None, None] - emission.means.numpy()  # around the old means
    scatter = np.einsum("nkm,nkmf,nkmg->kmfg", shares, off, off)
    expected = {
        "full": scatter / shares.sum(0)[..., None, None],
        "diag": np.diagonal(scatter, axis1=2, axis2=3) / shares.sum(0)[..., None],
        "spherical": np.trace(scatter, axis1=2, axis2=3) / shares.sum(0) / FEATURES,
        "tied": scatter.sum(1) / shares.sum((0, 2))[:, None, None],
    }
    assert_close(found.covars, expected[kind])


@pytest.mark.parametrize("kind", COVARIANCES)
def test_moments_of_mixtures_by_sampling(kind: str) -> None:
    emission = mixture(kind)
    matched, draws = emission.matched(), 100 * DRAWS
    for state in range(STATES):
        drawn = emission.sample(torch.full((draws,), state), seeded(state)).numpy()
        spread = float(matched.covars[state].diagonal().max())
        error = 6 * spread / np.sqrt(draws)  # standard errors, times a few
        np.testing.assert_allclose(drawn.mean(0), matched.means[state], atol=error, rtol=0)
        np.testing.assert_allclose(np.cov(drawn.T), matched.covars[state], atol=3 * error, rtol=0)


def test_a_component_without_visits_stays() -> None:
    emission = mixture("diag")
    kept = emission.maximised(torch.zeros(STATES, MIXED, 1 + 2 * FEATURES).double(), no_prior())
    for name in ("weights", "means", "covars"):
        assert_close(getattr(kept, name), getattr(emission, name))


def test_samples_of_mixtures_choose_components_by_their_weights() -> None:
    emission = mixture("spherical", apart=1000.0)
    for state in range(STATES):
        drawn = emission.sample(torch.full((DRAWS,), state), seeded(state))
        chosen = torch.cdist(drawn, emission.means[state]).argmin(1).numpy()
        assert chi_square(chosen, emission.weights[state].numpy()) > SMALLEST_P


def multinomial() -> Multinomial:
    return Multinomial(distributions(seeded(3), STATES, SYMBOLS), TRIALS)


def test_conformance_of_multinomials() -> None:
    check_emission(multinomial(), 0.0)


def test_density_of_multinomials() -> None:
    probs = distributions(seeded(3), STATES, SYMBOLS).numpy()
    probs[0] = [0.0, 0.5, 0.5, 0.0]
    x = np.random.RandomState(0).multinomial(TRIALS, np.full(SYMBOLS, 0.25), 40)
    x[:4, [0, 3]] = 0
    density = Multinomial(torch.from_numpy(probs)).log_density(torch.from_numpy(x).double())
    assert_close(density, np.transpose([stats.multinomial(x.sum(1), row).logpmf(x) for row in probs]))
    assert density[:4, 0].isfinite().all()
    assert (density[:, 0] == -torch.inf).any()


def test_samples_of_multinomials() -> None:
    emission = multinomial()
    for state in range(STATES):
        drawn = emission.sample(torch.full((DRAWS,), state), seeded(state)).numpy()
        assert (drawn.sum(1) == TRIALS).all()
        symbols = np.repeat(np.arange(SYMBOLS), drawn.sum(0).astype(int))
        assert chi_square(symbols, emission.probs[state].numpy()) > SMALLEST_P
