"""Co-occurrence MAD and the normalised likelihood."""

from __future__ import annotations

import numpy as np

from experiments.densehmm.metrics import (
    Probabilities,
    analytic,
    counted,
    mean_absolute_deviation,
    normalised_nll,
    sampled,
)

ENOUGH = 0.01  # of deviation, for 40,000 sampled pairs


def example() -> Probabilities:
    random = np.random.RandomState(0)
    return Probabilities(random.dirichlet([1] * 3), random.dirichlet([1] * 3, 3), random.dirichlet([1] * 4, 3))


def test_long_samples_have_the_analytic_cooccurrences() -> None:
    model = example()
    found = sampled(model, np.full(200, 200), seed=1)
    assert found.shape == (4, 4)
    assert np.isclose(found.sum(), 1)
    assert np.abs(found - analytic(model)).max() < ENOUGH
    assert (found == sampled(model, np.full(200, 200), seed=1)).all()
    assert (found != sampled(model, np.full(200, 200), seed=2)).any()


def test_samples_have_the_lengths_asked_for() -> None:
    model = Probabilities(np.array([1.0, 0.0]), np.array([[0.0, 1.0], [0.0, 1.0]]), np.eye(2))
    np.testing.assert_allclose(sampled(model, np.array([2, 3, 1])), [[0, 2 / 3], [0, 1 / 3]])


def test_counting_and_deviation() -> None:
    found = counted(np.array([0, 1, 1, 0]), np.array([2, 2]), 2)
    np.testing.assert_allclose(found, [[0, 0.5], [0.5, 0]])
    assert mean_absolute_deviation(found, np.full((2, 2), 0.25)) == 0.25


def test_normalised_likelihood() -> None:
    assert normalised_nll(-30.0, np.array([3, 5, 2])) == 2.0
