"""Log space beside the scaled arithmetic where both can, and beside enumeration where only log space can."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from strategies import assert_close, random_problem
from trellis.inference import discrete, logspace
from trellis.transitions import Dense
from trellis.types import Belief, Potentials


@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_same_as_scaled(zeros: float, missing: float) -> None:
    problem = random_problem(1, 6, 5, 3, zeros=zeros, missing=missing)
    posterior, scaled = logspace.smooth(*problem), discrete.smooth(*problem)
    assert_close(posterior.log_likelihood, scaled.log_likelihood)
    assert_close(posterior.probs, scaled.probs)
    possible = scaled.log_likelihood > -torch.inf
    counts, expected = logspace.counts(*problem), discrete.counts(*problem)[0]
    assert_close(counts.start, expected.start)
    assert_close(counts.transition, expected.transition)
    assert_close(counts.emission, expected.emission)
    assert possible.any()


def test_states_too_far_apart_for_scaled_numbers() -> None:
    """From state 0 only state 0 can be reached, and the second observation is exp(1000) times likelier in state 1."""
    prior, matrix = Belief(torch.tensor([[1.0, 0.0]]).double()), Dense(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double())
    potentials = Potentials.of(torch.tensor([[[-1.0, -1.0], [-1001.0, -1.0]]]).double())
    lengths = torch.tensor([2])
    assert logspace.is_wide(potentials)
    assert discrete.log_likelihood(prior, matrix, potentials, lengths).item() == -math.inf
    posterior = logspace.smooth(prior, matrix, potentials, lengths)
    assert_close(posterior.log_likelihood, np.array([-1002.0]))
    assert_close(posterior.probs, np.array([[[1.0, 0.0], [1.0, 0.0]]]))


def test_impossible_stays_impossible() -> None:
    prior, matrix = Belief(torch.tensor([[1.0, 0.0]]).double()), Dense(torch.eye(2).double())
    potentials = Potentials.of(torch.tensor([[[0.0, 0.0], [-torch.inf, 0.0]]]).double())
    posterior = logspace.smooth(prior, matrix, potentials, torch.tensor([2]))
    assert posterior.log_likelihood.item() == -math.inf
    assert (posterior.probs == 0).all()
