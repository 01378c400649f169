"""L-BFGS against closed forms, and stopped and resumed at every iteration."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import rosen, rosen_der

from trellis.learning.lbfgs import LBFGS

CLOSE = 1e-6


def quadratic(seed: int, size: int = 12):
    rng = np.random.default_rng(seed)
    root, target = rng.normal(size=(size, size)), rng.normal(size=size)
    matrix = root @ root.T + np.eye(size)
    return (lambda x: (0.5 * x @ matrix @ x - target @ x, matrix @ x - target)), np.linalg.solve(matrix, target)


def run(search: LBFGS, iterations: int) -> list[float]:
    values = []
    for _ in range(iterations):
        if not search.advance():
            break
        values.append(search.value)
    return values


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("history", [1, 6, 50])
def test_the_minimum_of_a_quadratic(seed: int, history: int) -> None:
    function, minimum = quadratic(seed)
    search = LBFGS(function, np.zeros(12), history)
    values = run(search, 400)
    assert np.abs(search.point - minimum).max() < 1e-4
    assert all(after <= before for before, after in pairwise(values))


def test_the_minimum_of_a_curved_valley() -> None:
    search = LBFGS(lambda x: (rosen(x), rosen_der(x)), np.full(6, -1.2), 6)
    run(search, 300)
    assert np.abs(search.point - 1).max() < CLOSE


def test_steep_functions() -> None:
    """Products of gradients are beyond float32."""
    function, minimum = quadratic(0)
    search = LBFGS(lambda x: tuple(1e20 * part for part in function(x)), np.zeros(12), 6)
    run(search, 400)
    assert np.abs(search.point - minimum).max() < 1e-4


def test_a_history_that_points_uphill_is_dropped() -> None:
    function, _ = quadratic(0)
    search = LBFGS(function, np.zeros(12), 6)
    before = run(search, 3)[-1]
    search.turns = [-turn for turn in search.turns]
    assert search.direction() @ search.slope > 0
    assert search.advance()
    assert search.value < before
    assert len(search.steps) == len(search.turns) == 1


def test_the_history_speeds_it_up() -> None:
    counts = []
    for history in (1, 30):
        function, minimum = quadratic(0, 40)
        search, steps = LBFGS(function, np.zeros(40), history), 0
        while np.abs(search.point - minimum).max() > CLOSE and steps < 2000:
            search.advance()
            steps += 1
        counts.append(steps)
    assert counts[1] < 0.8 * counts[0]


@pytest.mark.parametrize("stop", range(1, 12))
def test_a_resumed_run_takes_the_same_steps(stop: int) -> None:
    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float(rosen(x)), rosen_der(x)

    whole = LBFGS(function, np.full(5, -1.2), 4)
    expected = run(whole, 20)
    first = LBFGS(function, np.full(5, -1.2), 4)
    run(first, stop)
    state = {name: array.copy() for name, array in first.state().items()}
    second = LBFGS(function, np.zeros(5), 4)
    second.restore(state)
    assert run(second, 20 - stop) == expected[stop:]
    assert (second.point == whole.point).all()


def test_a_point_is_evaluated_once() -> None:
    seen = []

    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        seen.append(x.tobytes())
        return float(rosen(x)), rosen_der(x)

    run(LBFGS(function, np.full(4, 0.5), 4), 30)
    assert len(seen) == len(set(seen))


def test_the_state_of_another_function() -> None:
    state = LBFGS(lambda x: (0.0, x), np.zeros(3), 2).state()
    with pytest.raises(ValueError, match="another number of dimensions"):
        LBFGS(lambda x: (0.0, x), np.zeros(4), 2).restore(state)


def test_at_the_minimum_there_is_no_step() -> None:
    search = LBFGS(lambda x: (float(x @ x), 2 * x), np.zeros(3), 2)
    assert not search.advance()
    assert (search.point == 0).all()
