"""Gaussian emissions of data whose offset is far larger than its spread, against sums in 50 digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trellis import TrellisError
from trellis.estimators import GMMHMM, GaussianHMM, PoissonHMM

mpmath = pytest.importorskip("mpmath", reason="mpmath is missing")
mpmath.mp.dps = 50

KINDS = ["spherical", "diag", "full", "tied"]
CLOSE = 1e-6  # relative, of a variance: 1e9 is known to 1e-7
LENGTHS = [150, 50]
UNIX = 1.7e9
LEVELS = {"offset": (UNIX, UNIX + 20), "apart": (0.0, 1e9), "small": (0.0, 4.0), "tiny spread": (1e5, 1e5 + 1e-2)}


def data(levels: tuple[float, float], spread: float = 1.0) -> np.ndarray:
    random = np.random.RandomState(0)
    states = np.repeat(random.randint(2, size=40), 5)
    return np.array(levels)[states][:, None] + spread * random.randn(200, 2) * [1, 0.5]


def exact_m_step(X: np.ndarray, posterior: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances with hmmlearn's default prior (1e-2, weight 1), by two passes in 50 digits."""
    features, states = X.shape[1], posterior.shape[1]
    rows = [[mpmath.mpf(float(value)) for value in row] for row in X]
    weights = [[mpmath.mpf(float(p)) for p in row] for row in posterior]
    visits = [mpmath.fsum(row[k] for row in weights) for k in range(states)]
    means = [
        [mpmath.fsum(w[k] * x[f] for w, x in zip(weights, rows, strict=True)) / visits[k] for f in range(features)]
        for k in range(states)
    ]
    scatter = np.array(
        [
            [
                [
                    float(
                        mpmath.fsum(
                            w[k] * (x[f] - means[k][f]) * (x[g] - means[k][g])
                            for w, x in zip(weights, rows, strict=True)
                        )
                    )
                    for g in range(features)
                ]
                for f in range(features)
            ]
            for k in range(states)
        ]
    )
    counts = np.array([float(n) for n in visits])
    found: dict[str, Any] = {
        "full": (0.01 + scatter) / counts[:, None, None],
        "tied": (0.01 + scatter.sum(0)) / counts.sum(),
        "diag": (0.01 + np.diagonal(scatter, axis1=1, axis2=2)) / counts[:, None],
    }
    found["spherical"] = found["diag"].mean(1)
    return np.array([[float(m) for m in row] for row in means]), found[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LEVELS)
def test_the_m_step_equals_two_passes_in_50_digits(kind: str, name: str) -> None:
    spread = 1e-4 if name == "tiny spread" else 1.0
    X = data(LEVELS[name], spread)
    model = GaussianHMM(2, kind, random_state=0, n_iter=5, tol=-np.inf, min_covar=1e-12).fit(X, LENGTHS)
    posterior = model.predict_proba(X, LENGTHS)
    model.set_params(init_params="", n_iter=1).fit(X, LENGTHS)
    means, covars = exact_m_step(X, posterior, kind)
    np.testing.assert_allclose(model.means_, means, rtol=1e-13, atol=1e-9 * spread)
    np.testing.assert_allclose(model._covars_, covars, rtol=CLOSE, atol=CLOSE * np.abs(covars).max())


@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_only_shifts_the_means(kind: str) -> None:
    X = data((0.0, 4.0)).round(2)
    here = GaussianHMM(2, kind, random_state=0, n_iter=10).fit(X, LENGTHS)
    there = GaussianHMM(2, kind, random_state=0, n_iter=10).fit(X + 2.0**30, LENGTHS)
    order = np.argsort(here.means_[:, 0]), np.argsort(there.means_[:, 0])
    np.testing.assert_allclose(there.means_[order[1]] - 2.0**30, here.means_[order[0]], atol=1e-4)
    np.testing.assert_allclose(there.covars_[order[1]], here.covars_[order[0]], rtol=1e-4, atol=1e-5)
    assert (np.linalg.eigvalsh(there.covars_) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_initial_means_far_from_the_data(kind: str) -> None:
    """The first M-step finds the means; their distance to the old ones hides the variances until the second."""
    X = data((UNIX, UNIX + 20))
    model = GaussianHMM(2, kind, init_params="", n_iter=40, tol=-np.inf)
    model.startprob_, model.transmat_, model.means_ = [0.5, 0.5], np.full((2, 2), 0.5), [[0.0, 0.0], [1.0, 1.0]]
    model._covars_ = model.kind.for_states(torch.eye(2, dtype=torch.float64) * 1e17, 2).numpy()
    model.fit(X, LENGTHS)
    assert (np.linalg.eigvalsh(model.covars_) > 0).all()
    assert model.covars_.max() < 200
    np.testing.assert_allclose(model.means_.mean(0), X.mean(0), atol=15)


@pytest.mark.parametrize("kind", KINDS)
def test_partial_fit_of_a_large_offset(kind: str) -> None:
    X = data((0.0, 20.0)).round(2)
    here, there = GaussianHMM(2, kind, random_state=0), GaussianHMM(2, kind, random_state=0)
    for part in np.split(X, 4):
        here.partial_fit(part)
        there.partial_fit(part + 2.0**30)
    order = np.argsort(here.means_[:, 0]), np.argsort(there.means_[:, 0])
    np.testing.assert_allclose(there.means_[order[1]] - 2.0**30, here.means_[order[0]], atol=1e-4)
    np.testing.assert_allclose(there.covars_[order[1]], here.covars_[order[0]], rtol=1e-4, atol=1e-5)
    before = there.means_.copy()
    there.fit(X + 2.0**30)
    assert (there.means_ != before).any()


def test_partial_fit_from_means_far_from_the_data() -> None:
    model = GaussianHMM(1, init_params="")
    model.startprob_, model.transmat_, model.means_, model.covars_ = [1.0], [[1.0]], [[0.0, 0.0]], [[1.0, 1.0]]
    with pytest.raises(TrellisError, match="means_ is too far from the data to estimate variances"):
        model.partial_fit(data((UNIX, UNIX)))


def test_a_variance_that_is_not_positive_is_an_error() -> None:
    for kind in ("diag", "spherical"):
        with pytest.raises(TrellisError, match="variance is not positive; use a larger covars_prior"):
            GaussianHMM(2, kind, random_state=0, covars_prior=0.0).fit(np.full((20, 1), 3.0) + [[0.0], [9.0]] * 10)


def test_numbers_too_large_to_square() -> None:
    X = np.random.RandomState(0).randn(20, 2)
    X[7] *= 1e300
    for model in (GaussianHMM(2, random_state=0), GaussianHMM(2, "full", random_state=0), GMMHMM(2, random_state=0)):
        with pytest.raises(TrellisError, match="X has a number whose square overflows at observation 7; rescale"):
            model.fit(X)
    assert np.isfinite(GaussianHMM(2, random_state=0).fit(np.delete(X, 7, 0) * 1e100)._covars_).all()
    with pytest.raises(TrellisError, match="count that is too large at observation 0"):
        PoissonHMM(2, random_state=0).fit([[1e300], [2.0]])
