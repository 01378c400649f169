"""Exact EM of a linear dynamical system."""

from __future__ import annotations

from functools import partial
from itertools import islice

import pytest
import torch

from trellis.errors import TrellisError
from trellis.inference import gaussian
from trellis.inference.gaussian import Dynamics, Normal, Observation
from trellis.learning.kalman_em import NOISES, learn_exactly

HARDLY = 1e-6  # variance of observations that are almost exact
SLACK = 1e-7  # by which rounding may lower a likelihood


@pytest.fixture(scope="module")
def values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    true = start(generator)
    states = gaussian.sample_prior(*true[:2], steps=60, n=4, generator=generator)
    return gaussian.emit(true[2], states, generator)


def start(generator: torch.Generator) -> tuple[Normal, Dynamics, Observation]:
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    dynamics = Dynamics(0.7 * eye + 0.1 * draw(2, 2), eye)
    return Normal(draw(2), eye), dynamics, Observation(draw(4, 2), 0.5 * torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("noise", sorted(NOISES))
def test_the_likelihood_never_falls(values, noise) -> None:
    begin = start(torch.Generator().manual_seed(1))
    steps = list(islice(learn_exactly(*begin, values, noise), 25))
    likelihood = torch.tensor([step.log_likelihood for step in steps])
    assert bool((likelihood.diff() > -SLACK).all())
    assert likelihood[-1] > likelihood[0] + 10


@pytest.mark.parametrize(("noise", "same"), [("full", True), ("diagonal", True), ("spherical", False)])
def test_scaling_the_observations_changes_nothing_unless_their_noise_is_spherical(values, noise, same) -> None:
    scale = torch.tensor([1.0, 3.0, 0.2, 5.0], dtype=torch.float64)
    prior, dynamics, (loadings, cov) = start(torch.Generator().manual_seed(1))
    ours = next(islice(learn_exactly(prior, dynamics, Observation(loadings, cov), values, noise), 3, None))
    scaled = Observation(loadings * scale[:, None], cov * scale[:, None] * scale)
    other = next(islice(learn_exactly(prior, dynamics, scaled, values * scale, noise), 3, None))
    volume = values.shape[0] * values.shape[1] * float(scale.log().sum())
    difference = abs(ours.log_likelihood - other.log_likelihood - volume)
    assert (difference < 1e-6) is same


def test_states_that_are_observed_are_regressed_on_those_before() -> None:
    """Without noise of the observations, the transition is that of least squares, and its noise the residuals'."""
    generator, eye = torch.Generator().manual_seed(1), torch.eye(2, dtype=torch.float64)
    values = torch.randn(50, 2, 2, generator=generator, dtype=torch.float64).cumsum(1)
    begin = Normal(torch.zeros(2).double(), eye), Dynamics(eye, eye), Observation(eye, HARDLY * eye)
    found = next(learn_exactly(*begin, values)).dynamics
    before, after = values[:, :-1].flatten(0, 1), values[:, 1:].flatten(0, 1)
    transition = torch.linalg.lstsq(before, after).solution.T
    rest = after - before @ transition.T
    torch.testing.assert_close(found.transition, transition, rtol=0, atol=10 * HARDLY)
    torch.testing.assert_close(found.noise, rest.T @ rest / len(rest), rtol=0, atol=10 * HARDLY)


def test_what_cannot_be_is_told(values) -> None:
    begin = start(torch.Generator())
    with pytest.raises(TrellisError, match="not recognised"):
        next(learn_exactly(*begin, values, "striped"))
    with pytest.raises(TrellisError, match="missing"):
        next(learn_exactly(*begin, torch.full_like(values, torch.nan)))


def test_copies_of_the_data_change_nothing_but_the_likelihood(values) -> None:
    begin = start(torch.Generator().manual_seed(1))
    once, thrice = (next(learn_exactly(*begin, values.repeat(copies, 1, 1))) for copies in (1, 3))
    assert thrice.log_likelihood == pytest.approx(3 * once.log_likelihood)
    for one, other in zip((once.prior, once.dynamics, once.observation), thrice[1:], strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b)


def test_the_prior_has_the_moments_of_the_first_state(values) -> None:
    prior, dynamics, observation = start(torch.Generator().manual_seed(1))
    found = gaussian.smooth(prior, dynamics, gaussian.observe(observation, values))
    first, cov = found.means[:, 0], found.covs.step(0)[0]
    step = next(learn_exactly(prior, dynamics, observation, values))
    torch.testing.assert_close(step.prior[0], first.mean(0))
    torch.testing.assert_close(step.prior[1], cov + torch.cov(first.T, correction=0))


def test_what_cannot_be_learned(values) -> None:
    begin = start(torch.Generator().manual_seed(1))
    gap = values.clone()
    gap[0, 0, 0] = torch.nan
    for wrong in (values[:, :1], gap):
        with pytest.raises(TrellisError, match="at least two steps, without missing values"):
            next(learn_exactly(*begin, wrong))
    one = Observation(torch.ones(1, 2, dtype=torch.float64), torch.eye(1, dtype=torch.float64))
    assert next(learn_exactly(*begin[:2], one, values[:, :2, :1])).log_likelihood < 0
