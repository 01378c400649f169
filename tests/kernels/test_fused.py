"""The E-step in one compiled function against the reference engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trellis.engines import reference
from trellis.kernels.scan import fused
from trellis.testing.close import assert_close
from trellis.testing.problems import Problem, random_problem
from trellis.transitions import Dense


def run(problem: Problem) -> tuple[np.ndarray, ...] | None:
    """Every sequence has the prior of the first."""
    steps = fused.Steps(problem.potentials.rows.numpy(), problem.lengths.numpy())
    parts = problem.prior.probs[0], problem.transition.matrix, problem.potentials.table
    with np.errstate(all="ignore"):
        steps.expect(*(part.numpy() for part in parts))
        return steps.expect(*(part.numpy() for part in parts))  # in the same memory


@pytest.mark.parametrize("scale", [1.0, 1e-30])
@pytest.mark.parametrize(("batch", "steps", "states"), [(1, 1, 1), (1, 50, 3), (4, 30, 5), (3, 700, 2)])
def test_expected_counts(batch: int, steps: int, states: int, scale: float) -> None:
    """Ragged sequences with gaps; also rows that do not sum to one, as in variational inference."""
    problem = random_problem(1, batch, steps, states, symbols=9, missing=0.2, shortest=0)
    same = problem.prior._replace(probs=problem.prior.probs[:1].expand(batch, -1).contiguous())
    problem = problem._replace(prior=same, transition=Dense(problem.transition.matrix * scale))
    found, expected = run(problem), reference.expect(*problem)
    assert found is not None
    log_norms, _, _, starts, moves, visits = expected
    for one, other in zip(found, (log_norms.sum(), starts.sum(0), moves, visits), strict=True):
        assert_close(torch.from_numpy(one), other)


def test_an_impossible_sequence() -> None:
    problem = random_problem(1, 2, 20, 3, symbols=4, shortest=20)
    problem.potentials.table[problem.potentials.rows[1, 7]] = -np.inf
    assert run(problem) is None
