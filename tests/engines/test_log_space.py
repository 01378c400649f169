"""Log space beside the scaled arithmetic where both can, and beside enumeration where only log space can."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trellis.emissions import Categorical
from trellis.engines import log_space, reference
from trellis.inference import discrete, queries
from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.testing.problems import Problem, random_problem
from trellis.transitions import Dense, LowRank, Transition
from trellis.types import Belief, Potentials

NATS = 1000.0  # between states, more than float64 holds
SINGLE = 1e-4  # tolerance of numbers in single precision


@pytest.mark.parametrize("varying", ["no", "step", "sequence"])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_same_as_the_reference(zeros: float, missing: float, varying: str) -> None:
    problem = random_problem(1, 6, 5, 3, zeros=zeros, missing=missing, varying=varying, shortest=0)
    for name in ("score", "filter", "smooth", "expect"):
        ours, theirs = getattr(log_space, name)(*problem), getattr(discrete.engines, name)(*problem)
        if name == "expect":  # where the prior is zero, the gradient in it has no use
            ours, theirs = (found._replace(entry=found.entry * problem.prior.probs) for found in (ours, theirs))
        for one, other in zip(ours, theirs, strict=True):
            assert_close(*((one.probs, other.probs) if isinstance(one, Belief) else (one, other)))


def far_apart(transition: Transition, live: bool) -> Problem:
    """From state 0 only state 0 can be reached, and the second observation is exp(NATS) times likelier in state 1. The
    second sequence is an easy one, and the third shorter."""
    table = torch.tensor([[-1.0, -1.0], [-1.0 - NATS, -1.0]]).double()
    rows, lengths = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 1, 1]]), torch.tensor([3, 3, 2])
    ids = torch.arange(2).expand(3, 3, 2) if live else None
    prior = torch.tensor([1.0, 0.0]).double().expand(3, 2)
    return Problem(Belief(prior), transition, Potentials(table, rows, ids), lengths)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("kind", [Dense, lambda matrix: LowRank(matrix, torch.eye(2).double())])
def test_inference_survives_states_too_far_apart(kind, live: bool) -> None:
    problem = far_apart(kind(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double()), live)
    expected = np.array([-3.0 - NATS, -3.0, -2.0 - NATS])
    assert_close(discrete.log_likelihood(*problem), expected)
    posterior = discrete.smooth(*problem)
    assert_close(posterior.log_likelihood, expected)
    staying = np.array([[[1.0, 0.0]] * 3, [[1.0, 0.0]] * 3, [[1.0, 0.0]] * 2 + [[0.0, 0.0]]])
    assert_close(posterior.probs, staying)
    assert_close(discrete.filter(*problem).probs, staying)
    assert_close(discrete.to_dense(discrete.score(*problem)[1], 2), np.array([[1.0, 0.0]] * 3))
    counts, _ = discrete.counts(*problem)
    assert_close(counts.log_likelihood, np.array(expected.sum()))
    assert_close(counts.start, np.array([3.0, 0.0]))
    assert_close(counts.emission, np.array([[6.0, 0.0], [2.0, 0.0]]))
    moves = problem.transition.collect(
        torch.zeros(1, 1).long(), torch.zeros(1, 1).long(), torch.full((1, 1, 1), 5.0).double()
    )
    assert_close(counts.transition, moves)


@pytest.mark.parametrize("missing", [False, True])
def test_gaps_among_live_states(missing: bool) -> None:
    """A sparse support, a sequence with a gap, and one that scaled arithmetic loses, in one batch."""
    problem = random_problem(3, 4, 5, 4, symbols=3, live=2, shortest=5)
    table = problem.potentials.table.clone()
    table[0, 0] -= NATS
    rows = problem.potentials.rows.clone()
    rows[0], rows[1, 2] = 0, -1 if missing else 1
    problem = problem._replace(potentials=problem.potentials._replace(table=table, rows=rows))
    wide, (counts, _) = problem.widened(), discrete.counts(*problem)
    theirs = log_space.expect(*wide)
    assert_close(counts.log_likelihood, theirs.log_norms.sum())
    assert_close(counts.start, (theirs.entry * problem.prior.probs).sum(0))
    assert_close(counts.transition, theirs.moves)
    posterior = log_space.smooth(*wide)[1].gather(-1, problem.potentials.ids)
    assert_close(counts.emission, reference.add_rows(problem.potentials, posterior))


def test_queries_and_samples_of_what_scaled_numbers_lose() -> None:
    """Two states that never change, and symbols NATS apart: the gap between them can only be filled by one."""
    eye = torch.eye(2).double()
    emission = Categorical(torch.tensor([[-1e-9, -NATS], [-NATS, -1e-9]]).double(), None, 2)
    chain = queries.Chain(Belief(torch.tensor([[0.3, 0.7]]).double()), Dense(eye), emission)
    tokens = torch.tensor([[0, -1, 1]])
    assert_close(queries.log_marginal(chain, tokens), np.array([-NATS]), 1e-8)
    assert_close(queries.cavity(chain, emission.potentials(tokens))[0, 1], np.array([0.3, 0.7]), 1e-8)
    many = queries.Chain(Belief(chain.prior.probs.expand(2000, -1)), Dense(eye), emission)
    drawn = queries.sample_gaps(many, tokens.expand(2000, -1), generator=torch.Generator().manual_seed(1))
    assert chi_square(drawn[:, 1].numpy(), np.array([0.3, 0.7])) > SMALLEST_P


def test_gradients_are_not_rescued() -> None:
    """Training sees the sequence as impossible, and says so, instead of stepping on a number without a gradient."""
    problem = far_apart(Dense(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double().requires_grad_()), live=False)
    assert discrete.log_likelihood(*problem)[0].item() == -math.inf


def test_impossible_stays_impossible() -> None:
    prior, matrix = Belief(torch.tensor([[1.0, 0.0]]).double()), Dense(torch.eye(2).double())
    potentials = Potentials.of(torch.tensor([[[0.0, -NATS], [-torch.inf, 0.0]]]).double())
    posterior = discrete.smooth(prior, matrix, potentials, torch.tensor([2]))
    assert posterior.log_likelihood.item() == -math.inf
    assert (posterior.probs == 0).all()


@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float32, 1e-39), (torch.float64, 1e-310)])
@pytest.mark.parametrize(("states", "steps", "batch"), [(2, 3000, 1), (2, 3000, 5), (20, 600, 9)])
def test_a_transition_too_small_for_scaled_arithmetic(
    dtype: torch.dtype, tiny: float, states: int, steps: int, batch: int
) -> None:
    """State 0 emits symbol 0 alone, and is left with a probability that underflows in a product of two numbers: the
    problem is too large to be recomputed without a reason."""
    matrix = torch.zeros(states, states, dtype=dtype)
    matrix[0, 0], matrix[0, 1], matrix[1:, 1:] = 1 - tiny, tiny, 1 / (states - 1)
    table = torch.zeros(2, states, dtype=dtype)
    table[0, 1:], table[1, 0] = -torch.inf, -torch.inf
    rows = (torch.arange(steps) >= steps // 2).long().expand(batch, steps)
    prior = Belief(torch.eye(1, states, dtype=dtype).expand(batch, states))
    problem = prior, Dense(matrix), Potentials(table, rows)
    expected = np.full(batch, float(matrix[0, 1].double().log()))
    assert_close(discrete.log_likelihood(*problem), expected, SINGLE)
    assert_close(discrete.smooth(*problem).log_likelihood, expected, SINGLE)
    assert_close(discrete.filter(*problem).log_norms.double().sum(1), expected, SINGLE)
    counts = discrete.counts(*problem)[0]
    assert_close(counts.log_likelihood, np.array(expected.sum()), SINGLE)
    assert_close(counts.transition[0, 1].double(), np.array(float(batch)), SINGLE)
