"""Chains side by side: each must be what it is alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trellis.inference import discrete
from trellis.testing.close import assert_close
from trellis.testing.problems import Problem, distributions, random_problem, seeded
from trellis.transitions import Dense, Stacked
from trellis.types import Belief, Potentials

CHAINS, BATCH, STEPS, STATES, SYMBOLS = 3, 4, 5, 3, 4


@pytest.fixture
def matrices() -> Tensor:
    return distributions(seeded(1), CHAINS, STATES, STATES)


def problem(live: int | None, missing: float) -> Problem:
    return random_problem(2, CHAINS * BATCH, STEPS, STATES, SYMBOLS, live, missing=missing)


def part(given: Problem, chain: int, matrix: Tensor) -> Problem:
    """The sequences of one chain with its matrix."""
    mine = slice(BATCH * chain, BATCH * (chain + 1))
    ids = None if given.potentials.ids is None else given.potentials.ids[mine]
    potentials = Potentials(given.potentials.table, given.potentials.rows[mine], ids)
    return Problem(Belief(given.prior.probs[mine]), Dense(matrix), potentials, given.lengths[mine])


@pytest.mark.parametrize("live", [None, 2])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_inference_equals_that_of_each_chain_alone(matrices: Tensor, live: int | None, missing: float) -> None:
    given = problem(live, missing).widened() if live and missing else problem(live, missing)
    together = given._replace(transition=Stacked(matrices))
    for function in (discrete.smooth, discrete.viterbi):
        answers = function(*together)
        for chain, matrix in enumerate(matrices):
            for ours, alone in zip(answers, function(*part(given, chain, matrix)), strict=True):
                assert_close(ours[BATCH * chain : BATCH * (chain + 1)], alone)


@pytest.mark.parametrize("live", [None, 2])
def test_counts_are_kept_apart(matrices: Tensor, live: int | None) -> None:
    given = problem(live, 0.0)
    together, _ = discrete.counts(*given._replace(transition=Stacked(matrices)), per_sequence=True)
    visits = torch.zeros_like(together.emission)
    for chain, matrix in enumerate(matrices):
        alone, _ = discrete.counts(*part(given, chain, matrix))
        mine = slice(BATCH * chain, BATCH * (chain + 1))
        assert_close(together.transition[chain], alone.transition)
        assert_close(together.start[mine].sum(0), alone.start)
        assert_close(together.log_likelihood[mine].sum(), alone.log_likelihood)
        visits += alone.emission
    assert_close(together.emission, visits)


def test_the_first_of_the_best_states_is_the_best() -> None:
    scores = torch.tensor([[0.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    _, states = Stacked(torch.ones(3, STATES, STATES)).max_product(scores)
    assert states.tolist() == [[0] * STATES, [1] * STATES, [0] * STATES]


def test_gradients(matrices: Tensor) -> None:
    probs = torch.rand(CHAINS * BATCH, STATES, generator=seeded(3), dtype=torch.float64)

    def both_ways(matrix: Tensor) -> tuple[Tensor, ...]:
        return Stacked(matrix).forward(probs), Stacked(matrix).backward(probs), Stacked(matrix).dense()

    assert torch.autograd.gradcheck(both_ways, [matrices.requires_grad_()])
