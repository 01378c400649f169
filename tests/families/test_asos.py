"""Subspace identification and EM from counts, against matrices written out and passes over the text."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from lds_oracle import counted, learn, log_density, markov_text, one_hot, written_out
from trellis.errors import TrellisError
from trellis.families.lds.asos import Filter, expect, maximise
from trellis.families.lds.covariance import Covariances, Hankel
from trellis.families.lds.parameters import NOISES, IndefiniteError, Parameters, restrict_noise
from trellis.families.lds.subspace import OVERSAMPLING, decompose, identify, randomised_svd
from trellis.inference.steady import lyapunov

EXACT, LONG = 1e-9, 25  # a tolerance; a horizon beyond which small systems remember nothing
DIM, BLOCKS = 3, 3


@pytest.fixture(scope="module", params=[(0.0, 0.0), (20.0, 0.0), (5.0, 30.0)], ids=["plain", "tempered", "prior"])
def covariances(request) -> Covariances:
    return Covariances(counted(markov_text(), LONG), *request.param)


@pytest.fixture(scope="module")
def parameters(covariances) -> Parameters:
    return next(islice(learn(identify(covariances, DIM, BLOCKS)["unit"], covariances, LONG), 2, 3)).parameters


@pytest.mark.parametrize("circular", [True, False])
def test_operators_are_the_covariances(circular) -> None:
    text = markov_text(tokens=300)
    moments = counted(text, 3, circular)
    covariances = Covariances(moments, 2.0)
    words, eye = one_hot(text, moments, covariances.coordinates), np.eye(len(moments.counts))
    for lag in range(4):
        later, earlier = (np.roll(words, -lag, 0), words) if circular else (words[lag:], words[: len(words) - lag])
        if not circular:
            later, earlier = later - later.mean(0), earlier - earlier.mean(0)
        dense = later.T @ earlier / len(later)
        np.testing.assert_allclose(covariances[lag].matmat(eye), dense, atol=EXACT)
        np.testing.assert_allclose(covariances[lag].rmatmat(eye), dense.T, atol=EXACT)
        np.testing.assert_allclose(covariances[lag] @ eye[0], dense[:, 0], atol=EXACT)
        assert np.abs(covariances.coordinates.null @ dense).max() < 1e-12


def test_the_hankel_operator_and_its_svd(covariances) -> None:
    eye, size = np.eye(len(covariances.coordinates.scale)), len(covariances.coordinates.scale)
    rows = [[covariances[i + BLOCKS - j].matmat(eye) for j in range(BLOCKS)] for i in range(BLOCKS)]
    dense, operator = np.block(rows), Hankel(covariances, BLOCKS)
    np.testing.assert_allclose(operator.matmat(np.eye(BLOCKS * size)), dense, atol=EXACT)
    np.testing.assert_allclose(operator.rmatmat(np.eye(BLOCKS * size)), dense.T, atol=EXACT)
    left, values, right = randomised_svd(operator, DIM, seed=0, power_steps=50)
    expected = np.linalg.svd(dense)[1][:DIM]
    assert size * BLOCKS > DIM + OVERSAMPLING
    np.testing.assert_allclose(values, expected, rtol=1e-8)
    np.testing.assert_allclose(left.T @ dense @ right.T, np.diag(values), atol=1e-8)


def test_identification_from_exact_moments_finds_the_system() -> None:
    """The candidate "moments" recovers a true system, given its own covariances."""
    generator = np.random.default_rng(0)
    base = Covariances(counted(markov_text(), 2 * BLOCKS - 1))
    coordinates, size = base.coordinates, len(base.coordinates.scale)
    A = np.diag([0.9, -0.5, 0.3])
    outside = np.eye(size) - np.outer(coordinates.null, coordinates.null)
    C = 0.1 * outside @ generator.standard_normal((size, DIM))
    variance = lyapunov(A, np.eye(DIM))

    class Exact(Covariances):
        def __getitem__(self, lag):
            matrix = C @ np.linalg.matrix_power(A, lag) @ variance @ C.T
            return type("Matrix", (), {"matmat": lambda _, x: matrix @ x, "rmatmat": lambda _, x: matrix.T @ x})()

    found = identify(Exact(base.moments), DIM, BLOCKS)["moments"]
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(found.transition).real), [-0.5, 0.3, 0.9], atol=1e-6)
    np.testing.assert_allclose(found.loadings @ found.explained @ found.loadings.T, C @ variance @ C.T, atol=1e-6)


def test_gain_and_noise_are_those_of_the_dense_matrices(covariances, parameters) -> None:
    model, dense = Filter(parameters, covariances.coordinates), written_out(parameters, covariances.coordinates)
    assert np.linalg.eigvalsh(dense.noise).min() > -1e-12
    np.testing.assert_allclose(model.steady.predicted, dense.predicted, rtol=EXACT, atol=EXACT)
    words = np.eye(len(dense.noise)) - np.outer(covariances.coordinates.null, covariances.coordinates.null)
    np.testing.assert_allclose(model.gain.T @ words, dense.gain @ words, atol=EXACT)
    inverse = dense.basis @ np.linalg.inv(dense.basis.T @ dense.noise @ dense.basis) @ dense.basis.T
    np.testing.assert_allclose(
        model.emission.information, parameters.loadings.T @ inverse @ parameters.loadings, rtol=1e-8, atol=1e-8
    )


class Passes:
    """The steady-state filter and smoother run over the text, closed to a circle, and what they average."""

    def __init__(self, parameters: Parameters, covariances: Covariances, text: np.ndarray):
        model = Filter(parameters, covariances.coordinates)
        H, J, P = model.steady.forget, model.steady.back, model.steady.keep
        self.words = one_hot(text, covariances.moments, covariances.coordinates)
        inputs, mean = self.words @ model.gain, np.zeros(DIM)
        for _ in range(2):
            filtered = []
            for entry in inputs:
                mean = H @ mean + entry
                filtered.append(mean)
        self.filtered = np.array(filtered)
        for _ in range(2):
            smoothed = []
            for entry in self.filtered[::-1] @ P.T:
                mean = J @ mean + entry
                smoothed.append(mean)
        self.smoothed = np.array(smoothed)[::-1]
        self.forecasts = np.roll(self.filtered, 1, 0) @ model.forecast.T
        self.cov, self.lagged = model.steady.smoothed, model.steady.smoothed @ J.T


def test_averages_of_an_e_step_are_those_of_passes_over_the_text(covariances, parameters) -> None:
    """Beyond the memory of the system the horizon costs nothing: what ASOS says is exact."""
    text = markov_text()
    passes, found = Passes(parameters, covariances, text), expect(parameters, covariances, LONG)
    x, size = passes.smoothed, len(text)
    np.testing.assert_allclose(found.smoothed, x.T @ x / size, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.state, x.T @ x / size + passes.cov, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.moved, np.roll(x, -1, 0).T @ x / size + passes.lagged, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.words, passes.words.T @ x / size, rtol=1e-6, atol=1e-8)
    dense = written_out(parameters, covariances.coordinates)
    likelihood = log_density(passes.words - passes.forecasts, dense, covariances.coordinates).mean()
    assert found.log_likelihood == pytest.approx(likelihood, rel=1e-7)


def test_a_short_horizon_is_a_close_approximation(covariances, parameters) -> None:
    exact, errors = expect(parameters, covariances, LONG), []
    for horizon in (1, 3, 7):
        found = expect(parameters, covariances, horizon)
        errors.append(np.abs(found.moved - exact.moved).max() / np.abs(exact.moved).max())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-2


def test_em_makes_the_text_likelier_and_keeps_out_of_the_null_space() -> None:
    covariances = Covariances(counted(markov_text(), 9))
    for start in identify(covariances, DIM, BLOCKS).values():
        steps = list(islice(learn(start, covariances, 9), 30))
        gains = np.diff([step.log_likelihood for step in steps])
        assert (gains > -1e-6).all()
        assert gains.sum() > 1e-3
        assert np.abs(covariances.coordinates.null @ steps[-1].parameters.loadings).max() < 1e-12


@pytest.mark.parametrize("noise", sorted({*NOISES} - {"full"}))
def test_a_diagonal_noise_is_one_on_all_dimensions_given_that_words_sum_to_one(noise) -> None:
    covariances = Covariances(counted(markov_text(), 9), 3.0)
    full = identify(covariances, DIM, BLOCKS)["unit"]
    start = restrict_noise(full, covariances.coordinates, noise)
    model, coordinates = Filter(start, covariances.coordinates), covariances.coordinates
    D = np.diag(start.variance * coordinates.scale**2)
    expected = start.loadings.T @ np.linalg.inv(D) @ start.loadings
    np.testing.assert_allclose(model.emission.information, expected, rtol=1e-10, atol=1e-12)
    first, *_, last = islice(learn(start, covariances, 9, noise=noise), 15)
    *_, best = islice(learn(full, covariances, 9), 15)
    assert first.log_likelihood < last.log_likelihood < best.log_likelihood


def test_em_is_the_same_in_any_scale_of_the_words() -> None:
    """An iteration from the same system gives the same system, whitened or not."""
    moments = counted(markov_text(), LONG)
    plain, white = Covariances(moments, whiten=False), Covariances(moments, 7.0)
    start = identify(white, DIM, BLOCKS)["unit"]
    scale = white.coordinates.scale[:, None]
    ours = list(islice(learn(start, white, LONG), 3))
    same = list(islice(learn(start._replace(loadings=start.loadings / scale), plain, LONG), 3))
    for one, other in zip(ours, same, strict=True):
        assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-9)
        np.testing.assert_allclose(one.parameters.loadings / scale, other.parameters.loadings, rtol=1e-6, atol=1e-9)


def test_what_cannot_be_is_told() -> None:
    covariances = Covariances(counted(markov_text(tokens=500), 5))
    with pytest.raises(TrellisError, match="lags"):
        decompose(covariances, 2, 4, 0)
    with pytest.raises(TrellisError, match="dimensions"):
        decompose(covariances, 12, 2, 0)
    start = identify(covariances, 2, 2)["unit"]
    with pytest.raises(IndefiniteError, match="negative variance"):
        start._replace(explained=100 * start.explained).emission(covariances.coordinates)
    with pytest.raises(TrellisError, match="unstable"):
        expect(start._replace(transition=1.5 * np.eye(2)), covariances, 5)
    statistics = expect(start, covariances, 5)
    with pytest.raises(IndefiniteError, match="hidden vector"):
        maximise(statistics._replace(moved=3 * statistics.state))
    two = Covariances(counted(np.tile([0, 1], 50), 3))
    assert decompose(two, 1, 2, 0).loadings.shape == (2, 1)
    four = Covariances(counted(np.tile([0, 1, 2, 3], 50), 3))
    with pytest.raises(TrellisError, match="zero"):
        Covariances(type(four.moments)(four.moments.rows, np.array([1, 0, 2, 3]), four.moments.lags, True))
