"""Kalman filtering and smoothing against the joint Gaussian of all states and observations, inverted densely."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from trellis.errors import TrellisError
from trellis.inference import gaussian, kalman, observing, steady
from trellis.inference.beliefs import Shared
from trellis.inference.gaussian import Dynamics, Normal, Observation
from trellis.inference.steady import doubling, riccati, riccati_residual, schur, steady_state
from trellis.kernels import kalman as compiled
from trellis.kernels.kalman.numba import BLOCK

TOLERANCE, SINGLE = 1e-9, 1e-3
DRAWS, DEVIATIONS = 20_000, 5.0  # samples, and how many standard errors their moments may be off


class System(NamedTuple):
    prior: Normal
    dynamics: Dynamics
    observation: Observation


def covariance(generator: torch.Generator, size: int) -> torch.Tensor:
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)


def random_system(seed: int, hidden: int, seen: int, singular: bool = False) -> System:
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    transition = draw(hidden, hidden)
    transition *= 0.9 / torch.linalg.eigvals(transition).abs().max()
    noise = covariance(generator, hidden)
    if singular:
        noise[0] = noise[:, 0] = 0.0
    prior = Normal(draw(hidden), covariance(generator, hidden))
    return System(prior, Dynamics(transition, noise), Observation(draw(seen, hidden), covariance(generator, seen)))


class Joint:
    """All states and the observed values of one sequence [T, p] as one Gaussian."""

    def __init__(self, system: System, values: torch.Tensor):
        (mean, cov), (A, Q), (C, D) = system
        steps, hidden = len(values), len(A)
        means, blocks = [mean], {(0, 0): cov}
        for t in range(1, steps):
            means.append(A @ means[-1])
            blocks[t, t] = A @ blocks[t - 1, t - 1] @ A.T + Q
        for s in range(steps):
            for t in range(s + 1, steps):
                blocks[t, s] = A @ blocks[t - 1, s]
                blocks[s, t] = blocks[t, s].T
        self.mean = torch.cat(means)
        self.cov = torch.cat([torch.cat([blocks[s, t] for t in range(steps)], 1) for s in range(steps)])
        loadings, noise = torch.block_diag(*[C] * steps), torch.block_diag(*[D] * steps)
        seen = ~values.flatten().isnan()
        self.loadings, self.noise = loadings[seen], noise[seen][:, seen]
        self.values, self.steps, self.hidden = values.flatten()[seen], steps, hidden

    def evidence(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.loadings @ self.mean, self.loadings @ self.cov @ self.loadings.T + self.noise

    def log_likelihood(self) -> float:
        if not len(self.values):
            return 0.0
        return float(torch.distributions.MultivariateNormal(*self.evidence()).log_prob(self.values))

    def posterior(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean [T, h] and covariance [T, h, T, h] of the states."""
        mean, cov = self.evidence()
        gain = torch.linalg.solve(cov, self.loadings @ self.cov).T if len(cov) else self.cov[:, :0]
        found = self.cov - gain @ self.loadings @ self.cov
        shape = (self.steps, self.hidden)
        return (self.mean + gain @ (self.values - mean)).view(shape), found.view(*shape, *shape)


def with_gaps(values: torch.Tensor, generator: torch.Generator, gaps: str) -> torch.Tensor:
    if gaps == "steps":
        values[torch.rand(values.shape[:2], generator=generator) < 0.3] = torch.nan
    elif gaps == "parts":
        values[torch.rand(values.shape, generator=generator) < 0.3] = torch.nan
    return values


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    hidden=st.integers(1, 3),
    seen=st.integers(1, 4),
    steps=st.integers(1, 6),
    gaps=st.sampled_from(["none", "steps", "parts"]),
    singular=st.booleans(),
    ragged=st.booleans(),
    numba=st.booleans(),
)
def test_filter_and_smoother_are_the_conditioned_joint(
    seed, hidden, seen, steps, gaps, singular, ragged, numba
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not numba:
            patch.setattr(compiled, "kernels", lambda: None)
        check_against_joint(seed, hidden, seen, steps, gaps, singular, ragged)


@pytest.mark.parametrize("gaps", ["none", "steps", "parts"])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("numba", [False, True])
def test_one_system_of_every_kind(gaps: str, ragged: bool, numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not numba:
        monkeypatch.setattr(compiled, "kernels", lambda: None)
    check_against_joint(seed=3, hidden=3, seen=2, steps=5, gaps=gaps, singular=False, ragged=ragged)


def test_matrices_of_each_sequence_or_shared() -> None:
    generator = torch.Generator().manual_seed(0)
    matrices, vectors = torch.randn(4, 3, 3, generator=generator), torch.randn(4, 3, generator=generator)
    for shared in (matrices, matrices[:1]):
        expected = torch.stack([shared[i % len(shared)] @ vectors[i] for i in range(4)])
        torch.testing.assert_close(kalman.times(shared, vectors), expected)


def check_against_joint(seed, hidden, seen, steps, gaps, singular, ragged) -> None:
    system, generator = random_system(seed, hidden, seen, singular), torch.Generator().manual_seed(seed)
    values = with_gaps(torch.randn(3, steps, seen, generator=generator, dtype=torch.float64), generator, gaps)
    lengths = torch.tensor([steps, 1, max(1, steps - 1)]) if ragged else None
    potentials = gaussian.observe(system.observation, values)
    filtered = gaussian.filter(*system[:2], potentials, lengths)
    smoothed = gaussian.smooth(*system[:2], potentials, lengths)
    means = gaussian.smoothed_means(*system[:2], potentials, lengths)
    likelihood = gaussian.log_likelihood(*system[:2], potentials, lengths)
    for b in range(3):
        length = steps if lengths is None else int(lengths[b])
        joint = Joint(system, values[b, :length])
        mean, cov = joint.posterior()
        assert float(likelihood[b]) == pytest.approx(joint.log_likelihood(), rel=TOLERANCE, abs=TOLERANCE)
        assert float(smoothed.log_likelihood[b]) == pytest.approx(float(likelihood[b]), rel=TOLERANCE)
        torch.testing.assert_close(smoothed.means[b, :length], mean, rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(means[b, :length], mean, rtol=TOLERANCE, atol=TOLERANCE)
        covs, lagged, filtered_covs = (
            x.expand(3, *x.shape[1:])[b] for x in (smoothed.covs.all(), smoothed.lagged.all(), filtered.covs.all())
        )
        for t in range(length):
            torch.testing.assert_close(covs[t], cov[t, :, t], rtol=TOLERANCE, atol=TOLERANCE)
            if t + 1 < length:
                torch.testing.assert_close(lagged[t], cov[t + 1, :, t], rtol=TOLERANCE, atol=TOLERANCE)
            past = Joint(system, values[b, : t + 1])
            mean_now, cov_now = past.posterior()
            torch.testing.assert_close(filtered.means[b, t], mean_now[t], rtol=TOLERANCE, atol=TOLERANCE)
            torch.testing.assert_close(filtered_covs[t], cov_now[t, :, t], rtol=TOLERANCE, atol=TOLERANCE)
        assert not smoothed.means[b, length:].any()
        assert not filtered.log_norms[b, length:].any()


def test_a_long_sequence_settles_and_stays_exact() -> None:
    system = random_system(3, 2, 2)
    values = torch.randn(1, 150, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    smoothed = gaussian.smooth(*system[:2], gaussian.observe(system.observation, values))
    mean, cov = Joint(system, values[0]).posterior()
    torch.testing.assert_close(smoothed.means[0], mean, rtol=TOLERANCE, atol=TOLERANCE)
    at = torch.arange(150)
    torch.testing.assert_close(smoothed.covs.all()[0], cov.permute(0, 2, 1, 3)[at, at], rtol=TOLERANCE, atol=TOLERANCE)


def test_long_sequences_of_different_lengths_are_what_each_is_alone() -> None:
    system, lengths = random_system(7, 3, 4), torch.tensor([300, 1, 170, 40])
    values = torch.randn(4, 300, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = gaussian.smooth(*system[:2], gaussian.observe(system.observation, values), lengths)
    filtered = gaussian.filter(*system[:2], gaussian.observe(system.observation, values), lengths)
    for b, length in enumerate(lengths.tolist()):
        mine = gaussian.observe(system.observation, values[b : b + 1, :length])
        alone = gaussian.smooth(*system[:2], mine)
        torch.testing.assert_close(together.means[b, :length], alone.means[0], rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(filtered.means[b, :length], gaussian.filter(*system[:2], mine).means[0])
        torch.testing.assert_close(together.covs.all()[b, :length], alone.covs.all()[0], rtol=TOLERANCE, atol=TOLERANCE)
        assert float(together.log_likelihood[b]) == pytest.approx(float(alone.log_likelihood), rel=TOLERANCE)


def test_sequences_with_and_without_gaps_are_what_each_is_alone(monkeypatch) -> None:
    monkeypatch.setattr(gaussian, "HELD", 1)
    system, lengths = random_system(8, 3, 4), torch.tensor([30, 12, 30, 30, 20])
    values = torch.randn(5, 30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[1, 3], values[3, 5, 2] = torch.nan, torch.nan
    for verb in (gaussian.smoothed_means, gaussian.log_densities):
        together = verb(*system[:2], gaussian.observe(system.observation, values), lengths)
        for b, length in enumerate(lengths.tolist()):
            alone = verb(*system[:2], gaussian.observe(system.observation, values[b : b + 1, :length]))
            torch.testing.assert_close(together[b, :length], alone[0], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("numba", [False, True])
def test_covariances_that_only_an_observation_changes(numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first observation, the covariance is that of the stationary prior at all steps."""
    if not numba:
        monkeypatch.setattr(compiled, "kernels", lambda: None)
    system, eye = random_system(3, 2, 2), torch.eye(2, dtype=torch.float64)
    system = system._replace(prior=system.prior._replace(cov=eye), dynamics=Dynamics(0.5 * eye, 0.75 * eye))
    values = torch.randn(1, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[:, :3] = torch.nan
    smoothed = gaussian.smooth(*system[:2], gaussian.observe(system.observation, values))
    mean, cov = Joint(system, values[0]).posterior()
    torch.testing.assert_close(smoothed.means[0], mean, rtol=TOLERANCE, atol=TOLERANCE)
    at = torch.arange(6)
    torch.testing.assert_close(smoothed.covs.all()[0], cov.permute(0, 2, 1, 3)[at, at], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("steps", [1, 16, 101, 600])
@pytest.mark.parametrize("radius", [0.05, 0.3, 0.999])
def test_a_recursion_in_blocks_is_the_one_step_by_step(radius, steps) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = radius * torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0]
    inputs = torch.randn(2, steps, 3, generator=generator, dtype=torch.float64)
    state, expected = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(steps):
        state = state @ matrix + inputs[:, t]
        expected.append(state)
    torch.testing.assert_close(kalman.recur(matrix, inputs), torch.stack(expected, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gaps", ["steps", "parts", "two alike"])
def test_compiled_potentials_are_those_of_each_pattern(gaps) -> None:
    system, generator = random_system(9, 3, 2 * BLOCK + 5), torch.Generator().manual_seed(0)
    values = torch.randn(2, 2 * observing.TOGETHER, 2 * BLOCK + 5, generator=generator, dtype=torch.float64)
    if gaps == "two alike":
        values[1], values[:, ::2, 4:30] = values[0], torch.nan
    values = with_gaps(values, generator, gaps).flatten(0, 1)
    given = system.observation, values, *observing.distinct_rows(~values.isnan())
    for found, expected in zip(observing.sense_compiled(*given), observing.sense_patterns(*given), strict=True):
        torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_single_precision_agrees() -> None:
    system = random_system(4, 3, 4)
    values = torch.randn(2, 40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    single = System(*(type(part)(*(x.float() for x in part)) for part in system))
    for verb in (gaussian.log_likelihood, gaussian.smoothed_means):
        exact = verb(*system[:2], gaussian.observe(system.observation, values))
        rough = verb(*single[:2], gaussian.observe(single.observation, values.float()))
        torch.testing.assert_close(rough.double(), exact, rtol=SINGLE, atol=SINGLE)


@pytest.mark.parametrize("seed", range(3))
def test_the_steady_state_is_where_the_filter_settles(seed) -> None:
    _, (A, Q), (C, D) = random_system(seed, 3, 4)
    A, Q, phi = (x.numpy() for x in (A, Q, C.T @ torch.linalg.solve(D, C)))
    predicted = riccati(A, Q, phi)
    assert riccati_residual(predicted, A, Q, phi) < 1e-10
    for solve in (doubling, schur):
        np.testing.assert_allclose(solve(A, Q, phi), predicted, rtol=1e-10, atol=1e-12)
    found = np.eye(3)
    for _ in range(500):
        found = A @ np.linalg.solve(np.linalg.inv(found) + phi, A.T) + Q
    np.testing.assert_allclose(predicted, found, rtol=1e-10, atol=1e-12)


def test_starting_at_the_steady_state_makes_the_exact_filter_the_steady_one() -> None:
    _, dynamics, observation = random_system(5, 3, 4)
    values = torch.randn(1, 30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    potentials = gaussian.observe(observation, values)
    steady = steady_state(*(x.numpy() for x in dynamics), potentials.information[0].numpy())
    prior = Normal(torch.zeros(3, dtype=torch.float64), torch.from_numpy(steady.predicted))
    exact = gaussian.filter(prior, dynamics, potentials).means[0].numpy()
    mean, vectors = np.zeros(3), potentials.vectors[0].numpy()
    for t in range(30):
        mean = steady.forget @ mean + steady.filtered @ vectors[t]
        np.testing.assert_allclose(exact[t], mean, atol=1e-12)
    middle = gaussian.smooth(prior, dynamics, gaussian.observe(observation, values.repeat(1, 5, 1))).covs.step(75)[0]
    np.testing.assert_allclose(middle.numpy(), steady.smoothed, rtol=1e-8)


def test_samples_have_the_moments_of_the_posterior() -> None:
    system = random_system(6, 2, 2)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(1, 3, 2, generator=generator, dtype=torch.float64)
    values[0, 1] = torch.nan
    for given_values in (values, torch.full_like(values, torch.nan)):
        mean, cov = Joint(system, given_values[0]).posterior()
        paths = gaussian.sample_posterior(*system, given_values.expand(DRAWS, -1, -1), generator).flatten(1)
        cov = cov.reshape(6, 6)
        error = cov.diagonal().sqrt() / DRAWS**0.5
        assert bool(((paths.mean(0) - mean.flatten()).abs() < DEVIATIONS * error).all())
        spread = (cov.diagonal()[:, None] * cov.diagonal() + cov**2).sqrt() / DRAWS**0.5
        assert bool(((paths.T.cov() - cov).abs() < DEVIATIONS * spread).all())


def test_sequences_of_no_length_say_nothing() -> None:
    system, values = random_system(1, 2, 2), torch.zeros(2, 3, 2, dtype=torch.float64)
    potentials, none = gaussian.observe(system.observation, values), torch.zeros(2, dtype=torch.int64)
    assert not gaussian.log_likelihood(*system[:2], potentials, none).any()
    assert not gaussian.smoothed_means(*system[:2], potentials, none).any()


def test_bad_systems_are_told() -> None:
    system = random_system(0, 2, 2)
    negative, values = -torch.eye(2, dtype=torch.float64), torch.zeros(1, 3, 2, dtype=torch.float64)
    for gaps in (0, 1):
        values[0, :gaps, 0] = torch.nan
        with pytest.raises(TrellisError, match="positive definite"):
            gaussian.observe(system.observation._replace(noise=negative), values)
    with pytest.raises(TrellisError, match="unstable"):
        steady_state(2 * np.eye(2), np.eye(2), np.eye(2))


def test_shared_matrices_are_summed_over_the_steps() -> None:
    distinct = torch.rand(1, 4, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shared = Shared(distinct, torch.tensor([0, 1, 1, 0, 1]))  # the last two matrices are of no step
    torch.testing.assert_close(shared.total(3), 3 * shared.all().sum((0, 1)))
    wide = Shared(torch.rand(2, 2, 5, 5, dtype=torch.float64), torch.tensor([1, 0, 1]))
    torch.testing.assert_close(wide.total(2), wide.all().sum((0, 1)))


def test_doubling_that_does_not_converge_is_an_error() -> None:
    eye = np.eye(2)
    with pytest.raises(TrellisError, match="doubling did not converge"):
        doubling(2 * eye, np.full((2, 2), np.nan), eye)


def test_scipy_solves_what_doubling_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    eye = np.eye(2)
    expected = riccati(0.5 * eye, eye, eye)
    monkeypatch.setattr(steady, "ROUNDS", 1)
    np.testing.assert_allclose(riccati(0.5 * eye, eye, eye), expected)
    with pytest.raises(TrellisError, match="Cannot solve for a covariance"):
        steady.stein(0.9 * eye, eye, 0.9 * eye)
    with pytest.raises(TrellisError, match="has no steady state"):
        schur(eye, 0 * eye, 0 * eye)
