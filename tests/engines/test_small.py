"""The NumPy engine of small problems against the reference, and when it is chosen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from test_scan import BROKEN, assert_same, path_scores

from trellis import engines
from trellis.engines import compiled, homogeneous, reference, small
from trellis.errors import TrellisError
from trellis.kernels.scan import banded
from trellis.testing.close import assert_close
from trellis.testing.problems import Problem, random_problem
from trellis.transitions import Blocks, Dense
from trellis.types import Belief, Potentials

AGREEMENT = 1e-12  # relative, float64: the same log-likelihood from small.py and compiled.py
FUNCTIONS = ("score", "filter", "smooth", "expect")


@pytest.fixture(autouse=True)
def ignore_underflow() -> Iterator[None]:
    """As `trellis.engines` does."""
    with np.errstate(all="ignore"):
        yield


def is_reliable(problem: Problem) -> bool:
    return small.solve(*problem) is not None


def check_against_reference(problem: Problem) -> None:
    for name in FUNCTIONS:
        assert_same(getattr(small, name)(*problem), getattr(reference, name)(*problem))
    (path, score), (_, expected) = small.viterbi(*problem), reference.viterbi(*problem)
    assert_close(score, expected)
    assert ((path < 0) == ~problem.potentials.inside(problem.lengths)).all()
    assert_close(path_scores(problem, path), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 2, 6])
@pytest.mark.parametrize("states", [1, 2, 7])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_outputs(batch: int, states: int, steps: int, dtype: torch.dtype) -> None:
    """Complete sequences; then ragged ones with empty ones and gaps; then with zeros, so that some are impossible."""
    sizes = batch, steps, states
    complete = random_problem(1, *sizes, symbols=9, shortest=steps, dtype=dtype)
    ragged = random_problem(2, *sizes, symbols=9, missing=0.2, shortest=0, dtype=dtype)
    zeros = random_problem(3, *sizes, symbols=9, zeros=0.3, missing=0.2, shortest=0, dtype=dtype)
    for problem in (complete, ragged, zeros):
        check_against_reference(problem)


@pytest.mark.parametrize("shift", [-400.0, 400.0])
def test_densities_beyond_the_range_of_a_float(shift: float) -> None:
    problem = random_problem(4, 2, 20, 3)
    potentials = problem.potentials._replace(table=problem.potentials.table + shift)
    shifted = problem._replace(potentials=potentials)
    assert is_reliable(shifted)
    check_against_reference(shifted)


def test_steps_at_which_only_an_improbable_state_is_possible() -> None:
    """Unscaled sums would underflow every third step."""
    rare = torch.tensor([[1, 1e-60], [1, 1e-60]], dtype=torch.float64)
    table = torch.tensor([[0.0, -1e3], [-1e3, 0.0]], dtype=torch.float64)
    potentials = Potentials(table, torch.tensor([[0, 1] * 10]))
    problem = Problem(Belief(rare[:1]), Dense(rare), potentials, torch.tensor([20]))
    assert is_reliable(problem)
    check_against_reference(problem)


@pytest.mark.parametrize("states", [1, 3])
@pytest.mark.parametrize("steps", [banded.UNSCALED, banded.UNSCALED + 1, 3 * banded.UNSCALED - 1])
def test_long_sequences(steps: int, states: int) -> None:
    """Unnormalised probabilities would underflow; some sequences end early."""
    complete = random_problem(7, 1, steps, states, symbols=50, shortest=steps)
    ragged = random_problem(8, 6, steps, states, symbols=2000, missing=0.2, shortest=0)
    for problem in (complete, ragged):
        assert is_reliable(problem)
        for name in FUNCTIONS:
            assert_same(getattr(small, name)(*problem), getattr(reference, name)(*problem))


@pytest.mark.parametrize("steps", [300, 1000])
@pytest.mark.parametrize("scale", [1e-9, 1e-2, 1e2])
def test_rows_that_do_not_sum_to_one(steps: int, scale: float) -> None:
    """As in variational inference; the norms also change after the first steps, so that their rate misleads."""
    problem = random_problem(9, 2, steps, 3, symbols=20, missing=0.1, shortest=steps // 2)
    rows, table = problem.potentials.rows.clone(), problem.potentials.table.clone()
    table[:10] += torch.tensor([0.0, -30.0, -30.0])  # symbols of the beginning, or of the rest
    rows[:, : steps // 4] = rows[:, : steps // 4].clamp(max=9)
    rows[:, steps // 4 :] = rows[:, steps // 4 :].clamp(min=10)
    matrix = problem.transition.matrix * torch.tensor([[1e-3], [scale], [1.0]], dtype=torch.float64)
    problem = problem._replace(transition=Dense(matrix), potentials=Potentials(table, rows))
    assert is_reliable(problem)
    for name in FUNCTIONS:
        assert_same(getattr(small, name)(*problem), getattr(reference, name)(*problem))


@pytest.mark.parametrize("steps", [20, 400])
def test_a_second_e_step_starts_from_the_rate_of_the_first(steps: int) -> None:
    """Also if it is the rate of quite another chain."""
    one, other = (random_problem(seed, 3, steps, 3, symbols=20, missing=0.1, shortest=5) for seed in (10, 11))
    other = other._replace(transition=Dense(other.transition.matrix * 1e-4), potentials=one.potentials)
    sequences = banded.Sequences(one.potentials.rows.numpy(), one.lengths.numpy())
    for problem in (one, one, other, one):
        run = sequences.solve(
            *(small.double(x) for x in (problem.prior.probs, problem.transition.matrix, problem.potentials.table))
        )
        expected = reference.smooth(*problem._replace(lengths=one.lengths))
        assert run is not None
        assert_close(torch.from_numpy(run.log_likelihood()), expected[0].sum(1))
        assert_close(torch.from_numpy(run.smoothed()), expected[1])


@pytest.mark.filterwarnings("error")
def test_a_long_impossible_sequence() -> None:
    stay = torch.eye(2, dtype=torch.float64)
    rows = torch.zeros(2, 2 * banded.UNSCALED, dtype=torch.int64)
    rows[1, 5] = 1
    problem = Problem(
        Belief(stay[:1].expand(2, -1)), Dense(stay), Potentials(stay.log(), rows), torch.tensor([200, 256])
    )
    assert not is_reliable(problem)
    for name in FUNCTIONS:
        assert_same(getattr(small, name)(*problem), getattr(reference, name)(*problem))


def test_ties_go_to_the_lowest_state() -> None:
    even = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    potentials = Potentials(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([[0, 1, 1, 0]]))
    path, _ = small.viterbi(Belief(even), Dense(even.expand(3, 3).contiguous()), potentials, torch.tensor([4]))
    assert path.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("name", [name for name in BROKEN if "matrices" not in name])
def test_malformed_problems_raise(name: str) -> None:
    problem, message = BROKEN[name]
    for function in (*FUNCTIONS, "viterbi"):
        with pytest.raises(TrellisError, match=message):
            getattr(small, function)(*problem)


def test_inputs_are_unchanged() -> None:
    problem = random_problem(5, 3, 6, 4, missing=0.2, shortest=0)
    tensors = (problem.prior.probs, problem.transition.matrix, *problem.potentials[:2], problem.lengths)
    before = [tensor.clone() for tensor in tensors]
    check_against_reference(problem)
    assert all(one.equal(other) for one, other in zip(tensors, before, strict=True))


def chosen(problem: Problem) -> object:
    return engines.choose(problem.prior, problem.transition, problem.potentials)


def test_the_choice_depends_on_sizes_and_gradients_alone() -> None:
    assert chosen(random_problem(1, 1, banded.STEPS, 2)) is small
    assert chosen(random_problem(1, 1, banded.STEPS + 1, 2)) is compiled
    longer = random_problem(1, 1, banded.SHORT + 1, 2)
    assert chosen(longer) is small
    assert engines.choose(*longer[:3], viterbi=True) is compiled
    edge = banded.NUMBERS // (4 * 256)
    assert chosen(random_problem(1, edge, 256, 2, shortest=256)) is small
    assert chosen(random_problem(1, edge + 1, 256, 2, shortest=256)) is compiled
    edge = banded.SHORT_NUMBERS // (16 * 32)
    assert chosen(random_problem(1, edge, 32, 4, shortest=32)) is small
    assert chosen(random_problem(1, edge + 1, 32, 4, shortest=32)) is compiled
    tiny = random_problem(1, 1, 4, 2)
    for _ in range(2):  # before and after a compiled call
        assert chosen(tiny) is small
        compiled.score(*tiny)
    half = tiny._replace(potentials=tiny.potentials._replace(table=tiny.potentials.table.bfloat16()))
    assert chosen(half) is homogeneous
    varying = tiny._replace(transition=Blocks(tiny.transition.matrix.expand(1, 3, 2, 2).contiguous()))
    assert chosen(varying) is compiled
    tiny.transition.matrix.requires_grad_()
    assert chosen(tiny) is compiled
    with torch.no_grad():
        assert chosen(tiny) is small


@pytest.mark.parametrize(("steps", "states"), [(banded.STEPS, 2), (banded.SHORT, 8)])
def test_both_sides_of_the_limit_agree(steps: int, states: int) -> None:
    """Results do not jump where the compiled kernels take over."""
    problem = random_problem(6, 1, steps, states, shortest=steps)
    for one, other in ((small.score, compiled.score), (small.smooth, compiled.smooth)):
        np.testing.assert_allclose(one(*problem)[0].sum(), other(*problem)[0].sum(), rtol=AGREEMENT)


FIT = """
import sys
from trellis import CategoricalHMM
model = CategoricalHMM(2, random_state=0).fit("abracadabra" * 2)
model.score("abra"), model.predict("abra"), model.predict_proba("abra")
assert "numba" not in sys.modules
"""


def test_a_small_fit_loads_no_compiler() -> None:
    subprocess.run([sys.executable, "-c", FIT], check=True)
