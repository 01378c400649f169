"""Whole chains, all states live and transitions the same at every step: against the reference, gradients included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from operators import of_band, of_features
from trellis.engines import homogeneous, reference
from trellis.testing.close import assert_close
from trellis.testing.problems import Problem, random_problem
from trellis.transitions import Dense, LowRank, Softmax, Sum, Transition
from trellis.types import Belief, Potentials

STATES = 6


def parameters(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (STATES, 3), (STATES, 3), (STATES, 2), (STATES, STATES)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


OPERATORS = {
    "dense": lambda left, right, band, matrix: Dense(matrix.softmax(-1)),
    "low rank": lambda left, right, band, matrix: of_features(left, right)[0],
    "banded": lambda left, right, band, matrix: of_band(band)[0],
    "sum": lambda left, right, band, matrix: Sum.normalised(of_features(left, right), of_band(band)),
}


def problem_of(batch: int, steps: int) -> Problem:
    """Ragged, with empty sequences and gaps."""
    return random_problem(batch, batch, steps, STATES, symbols=9, missing=0.2, shortest=0)


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (3, 1), (2, 5), (5, 7)])
def test_scores_and_gradients(kind: str, batch: int, steps: int) -> None:
    problem = problem_of(batch, steps)
    found = []
    for engine in (reference, homogeneous):
        weights = parameters(steps)
        prior, table = (value.clone().requires_grad_() for value in (problem.prior.probs, problem.potentials.table))
        potentials = Potentials(table, problem.potentials.rows)
        log_norms, belief = engine.score(Belief(prior), OPERATORS[kind](*weights), potentials, problem.lengths)
        weighing = torch.arange(1.0, log_norms.numel() + 1, dtype=torch.float64).view_as(log_norms)
        ((log_norms * weighing).sum() + (belief.probs * torch.arange(STATES)).sum()).backward()
        grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in (prior, table, *weights)]
        found.append([log_norms, belief.probs, *grads])
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("kind", OPERATORS)
def test_filtering_and_smoothing(kind: str) -> None:
    problem = problem_of(4, 6)
    with torch.no_grad():
        given = problem.prior, OPERATORS[kind](*parameters(1)), problem.potentials, problem.lengths
        for name in ("filter", "smooth"):
            ours, theirs = (getattr(engine, name)(*given) for engine in (homogeneous, reference))
            assert_close(ours[0], theirs[0])
            assert_close(ours[1], theirs[1])


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize(("batch", "steps"), [(3, 1), (4, 6)])
def test_expected_counts(kind: str, batch: int, steps: int) -> None:
    problem = problem_of(batch, steps)
    problem.potentials.table[0] = -torch.inf  # makes some sequences impossible
    with torch.no_grad():
        given = problem.prior, OPERATORS[kind](*parameters(1)), problem.potentials, problem.lengths
        ours, theirs = (engine.expect(*given) for engine in (homogeneous, reference))
    possible = theirs.log_norms.sum(1) > -torch.inf
    assert_close(ours.log_norms, theirs.log_norms)
    assert_close(ours.belief.probs[possible], theirs.belief.probs[possible])
    for name in ("entry", "starts", "moves", "visits"):
        assert_close(getattr(ours, name), getattr(theirs, name), what=name)


def test_impossible_texts() -> None:
    table = torch.full((2, 2), -torch.inf, dtype=torch.float64)
    table[0] = -1.0
    table.requires_grad_()
    matrix = torch.eye(2, dtype=torch.float64).requires_grad_()
    prior = Belief(torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    potentials = Potentials(table, torch.tensor([[0, 1, 0]]))
    log_norms, _ = homogeneous.score(
        prior, LowRank(matrix, torch.eye(2, dtype=torch.float64)), potentials, torch.tensor([3])
    )
    assert log_norms[0, 1] == -torch.inf
    log_norms[0, 0].backward()
    assert table.grad is not None
    assert matrix.grad is not None
    assert table.grad.isfinite().all()
    assert matrix.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["banded", "softmax"])
def test_gradients_do_not_depend_on_what_was_asked_before(kind: str) -> None:
    """What all steps share is kept; if that was without gradients, it is computed again."""
    makers: dict[str, Callable[..., Transition]] = {
        "banded": lambda left, right, band, matrix: of_band(band)[0],
        "softmax": lambda left, right, band, matrix: Softmax(left, right),
    }
    problem, found = problem_of(3, 4), []
    for asked in (False, True):
        weights = parameters(1)
        given = problem.prior, makers[kind](*weights), problem.potentials, problem.lengths
        if asked:
            with torch.no_grad():
                homogeneous.smooth(*given)
        homogeneous.score(*given)[0].sum().backward()
        found.append([weight.grad for weight in weights if weight.grad is not None])
    assert len(found[0]) == {"banded": 1, "softmax": 2}[kind]
    for fresh, later in zip(*found, strict=True):
        assert_close(fresh, later)
