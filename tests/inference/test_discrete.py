"""Inference against the enumeration of all paths, through both engines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from strategies import problems
from trellis import engines
from trellis.engines import reference
from trellis.errors import TrellisError
from trellis.inference import discrete
from trellis.kernels.scan import banded
from trellis.testing.close import TOLERANCE, assert_close
from trellis.testing.oracle import SMALLEST_P, Paths, cells, chi_square, log
from trellis.testing.problems import Problem, distributions, random_problem, transition_of
from trellis.transitions import Blocks
from trellis.types import Belief, Counts, Potentials

DTYPES = (torch.float32, torch.float64)
examples = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)
any_problem = st.one_of(problems(DTYPES), problems(DTYPES, sparse=True))


@pytest.fixture(scope="module", autouse=True, params=["small", "compiled", "naive"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs with the engine of small problems, with numba alone, and without."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "small":
            patch.setattr(banded, "STEPS", 0)
        if request.param == "naive":
            patch.setattr(engines, "optional_engine", lambda name: None)
        yield request.param


def over_all_states(problem: Problem, probs: Tensor) -> Tensor:
    """[B, T, k] at the live states -> [B, T, K]."""
    if problem.potentials.ids is None or problem.potentials.gaps(problem.lengths).any():
        return probs
    full = probs.new_zeros(*probs.shape[:2], problem.num_states)
    return full.scatter(-1, problem.potentials.ids, probs)


def padded(values: list[np.ndarray], steps: int) -> np.ndarray:
    """Ragged arrays [n, ...] as one, zero past each end: [B, steps, ...]."""
    return np.stack([np.pad(v, [(0, steps - len(v))] + [(0, 0)] * (v.ndim - 1)) for v in values])


@examples
@given(any_problem)
def test_filter_and_score(problem: Problem) -> None:
    steps, paths = problem.potentials.rows.shape[1], problem.paths()
    log_norms = padded([p.log_norms() for p in paths], steps)
    filtered = padded([p.filtered() for p in paths], steps)
    result = discrete.filter(*problem)
    assert_close(result.log_norms, log_norms)
    assert_close(over_all_states(problem, result.probs), filtered)
    scored, belief = discrete.score(*problem)
    assert_close(scored, log_norms)
    last = [f[n - 1] for f, n in zip(filtered, problem.lengths.tolist(), strict=True) if n]
    for carried in (belief, result.belief):
        everywhere = discrete.to_dense(carried, problem.num_states)
        assert_close(everywhere[problem.lengths > 0], np.array(last).reshape(-1, problem.num_states))
    assert_close(discrete.log_likelihood(*problem), log([p.likelihood for p in paths]), TOLERANCE[problem.dtype])


@examples
@given(any_problem)
def test_smooth(problem: Problem) -> None:
    result, paths = discrete.smooth(*problem), problem.paths()
    assert_close(result.log_likelihood, log([p.likelihood for p in paths]), TOLERANCE[problem.dtype])
    smoothed = padded([p.smoothed() for p in paths], problem.potentials.rows.shape[1])
    assert_close(over_all_states(problem, result.probs), smoothed)


@examples
@given(problems())
def test_marginals_are_the_gradient_of_log_likelihood(problem: Problem) -> None:
    log_potentials = problem.potentials.gather().requires_grad_()
    given = problem._replace(potentials=Potentials.of(log_potentials))
    discrete.log_likelihood(*given).sum().backward()
    assert_close(log_potentials.grad, discrete.smooth(*problem).probs)


@examples
@given(any_problem)
def test_counts(problem: Problem) -> None:
    result, belief = discrete.counts(*problem)
    paths, steps, states = problem.paths(), problem.potentials.rows.shape[1], problem.num_states
    assert_close(result.log_likelihood, log([p.likelihood for p in paths]).sum(), TOLERANCE[problem.dtype])
    starts = np.stack([p.smoothed()[0] if p.num_steps else np.zeros(states) for p in paths])
    assert_close(result.start, starts.sum(0))
    pairs = padded([p.pairs() if p.num_steps else np.zeros((0, states, states)) for p in paths], steps - 1)
    added = {2: pairs.sum((0, 1)), 3: pairs.sum(0), 4: pairs}[problem.transition.matrix.dim()]
    assert_close(result.transition, added)
    assert_close(result.emission, expected_visits(problem, paths))
    assert_close(discrete.to_dense(belief, states), discrete.to_dense(discrete.score(*problem)[1], states))


def expected_visits(problem: Problem, paths: list[Paths]) -> np.ndarray:
    """Expected visits of (row of the table, live state): [N, k]."""
    table, rows, ids = problem.potentials[:3]
    visits = np.zeros(table.shape)
    for b, p in enumerate(paths):
        for t, posterior in enumerate(p.smoothed()):
            if rows[b, t] >= 0:
                visits[rows[b, t]] += posterior if ids is None else posterior[ids[b, t].numpy()]
    return visits


@examples
@given(any_problem)
def test_mode(problem: Problem) -> None:
    path, scores = discrete.viterbi(*problem)
    for b, p in enumerate(problem.paths()):
        assert_close(scores[b], log(p.weights.max()), TOLERANCE[problem.dtype])
        assert (path[b, p.num_steps :] == -1).all()
        weight = p.weight(path[b, : p.num_steps].numpy())
        np.testing.assert_allclose(weight, p.weights.max(), rtol=10 * TOLERANCE[problem.dtype])


@examples
@given(any_problem)
def test_posterior_samples_are_possible(problem: Problem) -> None:
    path = discrete.sample_posterior(*problem, torch.Generator().manual_seed(0))
    for b, p in enumerate(problem.paths()):
        assert (path[b, p.num_steps :] == -1).all()
        assert p.likelihood == 0 or p.weight(path[b, : p.num_steps].numpy()) > 0


@pytest.mark.parametrize("live", [None, 2])
@pytest.mark.parametrize("varying", ["no", "step", "sequence"])
@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_posterior_samples_have_the_right_distribution(live: int | None, varying: str, missing: float) -> None:
    draws, steps = 3000, 4
    one = random_problem(5, 1, steps, 3, live=live, varying=varying, zeros=0.2, missing=missing, shortest=steps)
    many = Problem(
        Belief(one.prior.probs.expand(draws, -1)),
        transition_of(one.transition.matrix if varying != "sequence" else one.matrices().expand(draws, -1, -1, -1)),
        Potentials(
            *(x if x is None or i == 0 else x.expand(draws, *x.shape[1:]) for i, x in enumerate(one.potentials[:3]))
        ),
        one.lengths.expand(draws),
    )
    path = discrete.sample_posterior(*many, torch.Generator().manual_seed(1))
    assert chi_square(cells(path.numpy(), 3), one.paths()[0].posterior) > SMALLEST_P


@pytest.mark.parametrize("varying", ["no", "step", "sequence"])
def test_prior_samples_have_the_right_distribution(varying: str) -> None:
    draws, steps = 3000, 4
    one = random_problem(6, 1, steps, 3, varying=varying, zeros=0.2, missing=1.0, shortest=steps)
    matrix = one.transition.matrix if varying != "sequence" else one.matrices().expand(draws, -1, -1, -1)
    generator = torch.Generator().manual_seed(2)
    path = discrete.sample_prior(one.prior.probs[0], transition_of(matrix), draws, steps, generator)
    assert chi_square(cells(path.numpy(), 3), one.paths()[0].posterior) > SMALLEST_P


def windows(problem: Problem, width: int) -> Iterator[tuple[Potentials, Tensor]]:
    """The potentials and lengths of each window of `width` steps."""
    table, rows, ids = problem.potentials[:3]
    for begin in range(0, rows.shape[1], width):
        part = slice(begin, begin + width)
        lengths = (problem.lengths - begin).clamp(0, rows[:, part].shape[1])
        yield Potentials(table, rows[:, part], None if ids is None else ids[:, part]), lengths


@pytest.mark.parametrize("live", [None, 2])
@pytest.mark.parametrize("batch", [2, 20])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_windows_with_carried_belief_equal_the_whole(live: int | None, batch: int, missing: float) -> None:
    problem = random_problem(7, batch, 12, 4, live=live, missing=missing, shortest=12)
    whole, last = discrete.score(*problem)
    prior, parts = problem.prior, []
    for potentials, lengths in windows(problem, 5):
        scored, belief = discrete.score(prior, problem.transition, potentials, lengths)
        prior = Belief(reference.move(belief, problem.transition, None))
        parts.append(scored)
    assert_close(torch.cat(parts, 1), whole)
    assert_close(discrete.to_dense(belief, 4), discrete.to_dense(last, 4))


@pytest.mark.parametrize("live", [None, 2])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_counts_of_a_window_include_the_transition_into_it(live: int | None, missing: float) -> None:
    """A sequence that continues is one that begins a step earlier, at the carried belief and with nothing observed."""
    problem = random_problem(8, 4, 4, 3, live=live, missing=missing)
    carried = Belief(distributions(torch.Generator().manual_seed(3), 4, 3))
    fresh = torch.tensor([True, False, False, True])
    moved = torch.where(fresh[:, None], problem.prior.probs, reference.move(carried, problem.transition, None))
    result, _ = discrete.counts(Belief(moved), *problem[1:], carried=carried, fresh=fresh)

    starts, moves, expected = np.zeros(3), np.zeros((3, 3)), []
    for b, p in enumerate(problem._replace(prior=Belief(moved)).paths()):
        if fresh[b]:
            starts += p.smoothed()[0]
            moves += p.pairs().sum(0)
        else:
            matrices = problem.transition.matrix.expand(p.num_steps, 3, 3).numpy()
            longer = Paths(carried.probs[b].numpy(), matrices, np.concatenate([np.ones((1, 3)), p.potentials]))
            moves += longer.pairs().sum(0)
        expected.append(p)
    assert_close(result.start, starts)
    assert_close(result.transition, moves)
    assert_close(result.emission, expected_visits(problem, expected))


@pytest.mark.parametrize("live", [None, 2])
def test_counts_with_carried_at_live_states(live: int | None) -> None:
    problem = random_problem(9, 3, 4, 3, live=live)
    narrow = discrete.score(*problem)[1]
    wide = Belief(discrete.to_dense(narrow, 3))
    prior = Belief(reference.move(narrow, problem.transition, None))
    continues = torch.zeros(3, dtype=torch.bool)
    results = [discrete.counts(prior, *problem[1:], carried=c, fresh=continues)[0] for c in (narrow, wide)]
    for one, other in zip(*results, strict=True):
        assert_close(one, other)
    assert results[0].start.sum() == 0


@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_a_prior_at_live_states_is_the_prior_over_all(missing: float) -> None:
    problem = random_problem(10, 3, 4, 4, live=2, missing=missing)
    problem.potentials.rows[:, 0] = problem.potentials.rows[:, 0].clamp(min=0)
    ids = problem.potentials.ids[:, 0]
    narrow = problem._replace(prior=Belief(problem.prior.probs.gather(-1, ids), ids))
    wide = problem._replace(prior=Belief(discrete.to_dense(narrow.prior, 4)))
    for function in (discrete.score, discrete.smooth, discrete.viterbi):
        assert_close(function(*narrow)[0], function(*wide)[0], TOLERANCE[torch.float64])
    for one, other in zip(discrete.counts(*narrow)[0], discrete.counts(*wide)[0], strict=True):
        assert_close(one, other)
    dense = narrow.widened()
    assert_close(discrete.log_likelihood(*dense), discrete.log_likelihood(*wide))


def impossible(batch: int = 2, varying: str = "no") -> Problem:
    """Two states that never change place; the second symbol belongs to the second state, and the first begins."""
    leading = {"no": (), "step": (2,), "sequence": (batch, 2)}[varying]
    table = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]], dtype=torch.float64)
    rows = torch.tensor([[0, 0, 0], [0, 1, 0]]).repeat(batch // 2, 1)
    prior = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(batch, 1)
    eye = torch.eye(2, dtype=torch.float64).expand(*leading, 2, 2)
    return Problem(Belief(prior), transition_of(eye), Potentials(table, rows), torch.full((batch,), 3))


@pytest.mark.parametrize("varying", ["no", "step", "sequence"])
@pytest.mark.parametrize("batch", [2, 32])
def test_impossible_sequences_are_minus_infinity_and_never_nan(batch: int, varying: str) -> None:
    problem = impossible(batch, varying)
    dead = torch.arange(batch) % 2 == 1
    leaves = [x.requires_grad_() for x in (problem.prior.probs, problem.transition.matrix, problem.potentials.table)]
    total = discrete.log_likelihood(*problem)
    assert (total[dead] == -torch.inf).all()
    assert (total[~dead] == 0).all()
    total[dead].sum().backward()
    for leaf in leaves:
        assert (leaf.grad == 0).all()
        leaf.requires_grad_(False)
    posterior, (result, belief) = discrete.smooth(*problem), discrete.counts(*problem)
    assert (posterior.probs[dead] == 0).all()
    assert (posterior.probs[~dead].sum(-1) == 1).all()
    assert result.emission.sum() == 3 * (~dead).sum()
    assert result.transition.sum() == 2 * (~dead).sum()
    assert (belief.probs[dead] == 0).all()
    path, score = discrete.viterbi(*problem)
    assert (score[dead] == -torch.inf).all()
    assert (path[~dead] == 0).all()
    drawn = discrete.sample_posterior(*problem)
    assert ((drawn >= 0) & (drawn < 2)).all()


@pytest.mark.parametrize("varying", ["no", "step"])
@pytest.mark.parametrize("batch", [2, 32])
def test_a_probability_beneath_the_smallest_normal_number_counts_as_zero(
    batch: int, varying: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its reciprocal would be infinite, and infinity times zero is not a number."""
    monkeypatch.setattr(banded, "STEPS", 0)  # it computes in float64
    problem = impossible(batch, varying)
    table = torch.tensor([[0.0, -torch.inf], [-90.0, 0.0]])
    problem = Problem(
        Belief(problem.prior.probs.float()),
        transition_of(problem.transition.matrix.float()),
        problem.potentials._replace(table=table),
        problem.lengths,
    )
    assert (engines.score(*problem)[0].sum(1)[1::2] == -torch.inf).all()
    assert (engines.smooth(*problem)[1][1::2] == 0).all()
    assert engines.expect(*problem).moves.isfinite().all()
    assert (discrete.log_likelihood(*problem)[1::2] == -90).all()  # by log space


def test_words_past_the_end_do_not_matter() -> None:
    for live in (None, 2):
        problem = random_problem(11, 5, 6, 3, live=live)
        outside = torch.arange(6) >= problem.lengths[:, None]
        table, rows, ids = problem.potentials[:3]
        for padding in (-1, 0, 3):
            padded = Potentials(table, rows.masked_fill(outside, padding), ids)
            other = problem._replace(potentials=padded)
            for function in (discrete.filter, discrete.smooth, discrete.viterbi):
                assert_close(function(*other)[0], function(*problem)[0])
                assert_close(function(*other)[1].double(), function(*problem)[1].double())
            one, two = discrete.filter(*other).belief, discrete.filter(*problem).belief
            assert_close(discrete.to_dense(one, 3), discrete.to_dense(two, 3))
            draws = [discrete.sample_posterior(*p, torch.Generator().manual_seed(0)) for p in (other, problem)]
            assert draws[0].equal(draws[1])
            assert ((draws[0] < 0) == outside).all()


@pytest.mark.parametrize("batch", [2, 20, 70])
def test_a_sequence_without_steps_keeps_its_prior(batch: int) -> None:
    problem = random_problem(12, batch, 3, 4)
    problem = problem._replace(lengths=torch.zeros(batch, dtype=torch.int64))
    prior = Belief(problem.prior.probs.requires_grad_())
    log_norms, belief = discrete.score(prior, *problem[1:])
    assert (log_norms == 0).all()
    assert belief.probs.equal(prior.probs)
    belief.probs.sum().backward()
    assert (prior.probs.grad == 1).all()
    path, score = discrete.viterbi(*problem)
    assert (path == -1).all()
    assert (score == 0).all()
    result, _ = discrete.counts(*problem)
    assert all((field == 0).all() for field in result)


def test_lengths_default_to_all_steps() -> None:
    problem = random_problem(13, 3, 4, 3, shortest=4)
    assert_close(discrete.log_likelihood(*problem[:3]), discrete.log_likelihood(*problem))


def test_counts_add_and_scale() -> None:
    result, _ = discrete.counts(*random_problem(14, 3, 4, 3))
    twice: Counts = result.plus(result, 3.0)
    for one, four in zip(result, twice, strict=True):
        assert_close(four, 4 * one)


def test_what_varying_transitions_cannot_do() -> None:
    blocks = Blocks(torch.full((2, 2, 2), 0.5))
    prior, table = Belief(torch.full((1, 2), 0.5)), Potentials(torch.zeros(1, 2), torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(TrellisError, match="time-varying"):
        discrete.counts(prior, blocks, table, carried=prior, fresh=torch.tensor([False]))
    with pytest.raises(TrellisError, match="object transitions do not support sampling"):
        discrete.sample_prior(torch.ones(1), object(), 1, 2)
