"""Descent on many problems at once, and the M-step that uses it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trellis.families.hmm.parameters.embedding import ROLES, EmbeddingParams
from trellis.learning.descent import OPTIMIZERS, minimise
from trellis.parts import Prior
from trellis.testing.close import assert_close
from trellis.testing.problems import random_vectors, seeded
from trellis.types import Counts

RATES = {"adam": 0.01, "sgd": 0.1, "lbfgs": 1.0}
RUNS, STATES, SYMBOLS, LENGTH = 3, 4, 5, 2


def counts(runs: int = RUNS) -> Counts:
    draw = torch.Generator().manual_seed(5)
    sizes = ((), (STATES,), (STATES, STATES), (SYMBOLS, STATES))
    return Counts(*(torch.rand(runs, *size, generator=draw, dtype=torch.float64) * 20 for size in sizes))


def test_small_problems_leave_the_number_of_threads_alone() -> None:
    before, used = torch.get_num_threads(), set[int]()
    weights = torch.zeros(RUNS, 4, requires_grad=True)

    def loss() -> Tensor:
        used.add(torch.get_num_threads())
        return weights.square().sum(-1)

    torch.set_num_threads(2)
    try:
        minimise([weights], loss, 1)
        assert (used, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bowls_are_descended(optimizer: str) -> None:
    target = torch.randn(RUNS, 4, generator=seeded(1), dtype=torch.float64)
    weights = torch.zeros(RUNS, 4, dtype=torch.float64, requires_grad=True)
    result = minimise([weights], lambda: (weights - target).square().sum(-1), 400, optimizer, RATES[optimizer])
    assert result.history.shape[1] == RUNS
    assert (result.best < 1e-4).all()
    assert_close(result.best, (weights - target).square().sum(-1))


def test_gradient_steps_are_those_of_the_losses_themselves() -> None:
    start = torch.tensor([[3.0], [-0.5]], dtype=torch.float64)
    weights = start.clone().requires_grad_()
    minimise([weights], lambda: weights.square().sum(-1), 3, "sgd", 0.1)
    assert_close(weights.detach(), start * 0.8**3)


def test_a_step_of_lbfgs_is_one_iteration() -> None:
    """The first one goes along the gradient."""
    scales, start = torch.tensor([1.0, 10.0], dtype=torch.float64), torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    weights = start.clone().requires_grad_()
    minimise([weights], lambda: (scales * weights.square()).sum(-1), 1, "lbfgs", 1.0)
    moved, slope = (weights.detach() - start)[0], scales * start[0]
    assert float(moved @ slope / (moved.norm() * slope.norm())) == pytest.approx(-1.0, abs=1e-9)


def test_lbfgs_descends_bowls_of_any_depth() -> None:
    depths = torch.tensor([1e-20, 1.0, 1e20], dtype=torch.float64)
    weights = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    minimise([weights], lambda: depths * (weights - 2.0).square().sum(-1), 20, "lbfgs", 1.0)
    assert_close(weights.detach(), torch.full((3, 4), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_best_is_kept_whatever_happens_after(optimizer: str) -> None:
    """Steps far too long end somewhere, or nowhere; the weights stay at the best place that was seen."""
    weights = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)

    def steep() -> Tensor:
        return (weights.exp() - torch.tensor([[2.0], [3.0]])).square().sum(-1)

    first = steep().detach()
    result = minimise([weights], steep, 30, optimizer, 1e4)
    assert (result.best <= first).all()
    assert_close(steep().detach(), result.best)


def test_problems_side_by_side_do_not_touch_each_other() -> None:
    vectors, given = random_vectors(STATES, SYMBOLS, LENGTH, runs=RUNS), counts()
    together = EmbeddingParams(vectors)
    together.maximise(given, steps=20)
    for run in range(RUNS):
        alone = EmbeddingParams({role: value[run : run + 1] for role, value in vectors.items()})
        alone.maximise(Counts(*(value[run : run + 1] for value in given)), steps=20)
        for role in ROLES:
            assert_close(getattr(together, role)[run], getattr(alone, role)[0])


def test_expected_log_likelihood_by_the_lagrangian() -> None:
    """Appendix A: counts times scalar products, less counts times log-sums of exponentials."""
    params, given = EmbeddingParams(random_vectors(STATES, SYMBOLS, LENGTH)), Counts(*(value[0] for value in counts()))
    assert params.v is not None
    assert params.w is not None
    total = torch.zeros((), dtype=torch.float64)
    for i in range(STATES):
        for j in range(STATES):
            total += given.transition[i, j] * (params.u[j] @ params.z[i] - (params.u @ params.z[i]).exp().sum().log())
        for j in range(SYMBOLS):
            total += given.emission[j, i] * (params.v[j] @ params.w[i] - (params.v @ params.w[i]).exp().sum().log())
        total += given.start[i] * (params.u[i] @ params.z_start - (params.u @ params.z_start).exp().sum().log())
    assert_close(params.expected_log_likelihood(given), total)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_m_step_climbs(optimizer: str) -> None:
    params, given = EmbeddingParams(random_vectors(STATES, SYMBOLS, LENGTH, runs=RUNS)), counts()
    before = params.expected_log_likelihood(given).detach()
    params.maximise(given, Prior(), 25, optimizer, RATES[optimizer])
    assert (params.expected_log_likelihood(given) > before).all()


def test_the_m_step_reaches_the_closed_maximum_where_vectors_are_long() -> None:
    params, given = EmbeddingParams(random_vectors(STATES, SYMBOLS, STATES + 1, runs=1)), counts(1)
    params.maximise(given, Prior(), 300, "lbfgs", 1.0)
    assert_close(params.log_transition().exp(), given.transition / given.transition.sum(-1, keepdim=True), 1e-4)
    assert_close(params.log_emission().exp(), (given.emission / given.emission.sum(-2, keepdim=True)).mT, 1e-4)


def test_only_the_roles_named_move() -> None:
    vectors = random_vectors(STATES, SYMBOLS, LENGTH, runs=RUNS)
    params = EmbeddingParams(vectors)
    params.maximise(counts(), roles=("z", "v"))
    moved = [role for role in ROLES if not getattr(params, role).equal(vectors[role])]
    assert moved == ["z", "v"]


def test_without_weights_there_is_nothing_to_do() -> None:
    losses = torch.tensor([1.0, 2.0, 3.0])
    result = minimise([], lambda: losses, 10)
    assert result.history.tolist() == [[1.0, 2.0, 3.0]]
    assert result.best.tolist() == [1.0, 2.0, 3.0]
