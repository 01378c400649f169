"""The compiled engine against the reference: outputs, gradients, ragged lengths, threads; and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from trellis import engines
from trellis.engines import compiled, homogeneous, reference
from trellis.errors import TrellisError
from trellis.inference import discrete
from trellis.kernels.scan import lanes, serial
from trellis.testing.close import assert_close
from trellis.testing.problems import Problem, random_problem, transition_of
from trellis.transitions import Dense, LowRank
from trellis.types import Belief, Potentials

BATCHES = [1, 3, compiled.LANES_FROM, lanes.LANES, lanes.LANES + 1, 2 * lanes.LANES + 2]
STATES = [1, 2, 7, compiled.BLOCKS_FROM, compiled.BLOCKS_FROM + 1]
EITHER = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
SHAPES = pytest.mark.parametrize(
    ("batch", "states"), [*((b, 7) for b in BATCHES), *((b, k) for b in (2, lanes.LANES + 1) for k in STATES)]
)
VARYING = pytest.mark.parametrize("varying", ["no", "step", "sequence"])


def problem_of(batch: int, states: int, dtype: torch.dtype = torch.float64, varying: str = "no") -> Problem:
    """Ragged, with empty sequences, gaps and some zeros."""
    return random_problem(
        batch + states, batch, 6, states, symbols=9, varying=varying, zeros=0.1, missing=0.2, shortest=0, dtype=dtype
    )


def assert_same(one: object, other: object) -> None:
    """Two results of an engine are equal: tensors, beliefs, or tuples of them."""
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor)
        assert one.dtype == other.dtype
        assert_close(one, other)
    elif one is not None:
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)


@pytest.fixture
def restore_threads() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@EITHER
@SHAPES
def test_outputs(batch: int, states: int, dtype: torch.dtype) -> None:
    assert_same_outputs(problem_of(batch, states, dtype))


@EITHER
@VARYING
def test_outputs_where_transitions_vary(varying: str, dtype: torch.dtype) -> None:
    for batch in (1, 3, lanes.LANES + 1):
        assert_same_outputs(problem_of(batch, 5, dtype, varying))


def assert_same_outputs(problem: Problem) -> None:
    for name in ("filter", "smooth", "expect"):
        assert_same(getattr(compiled, name)(*problem), getattr(reference, name)(*problem))
    assert_same(compiled.score(*problem), reference.score(*problem))
    filtered = reference.filter(*problem)[1]
    uniform = torch.rand(filtered.shape[:2], generator=torch.Generator().manual_seed(0), dtype=problem.dtype)
    paths = [engine.sample(problem.transition, filtered, problem.lengths, uniform) for engine in (compiled, reference)]
    assert (paths[0] != paths[1]).sum() <= (problem.dtype == torch.float32)
    compare_modes(problem)


def compare_modes(problem: Problem) -> None:
    """The scores agree, and so do the paths wherever they do not tie."""
    (path, score), (_, expected) = compiled.viterbi(*problem), reference.viterbi(*problem)
    assert_close(score, expected)
    outside = ~problem.potentials.inside(problem.lengths)
    assert ((path < 0) == outside).all()
    assert_close(path_scores(problem, path), expected)


@EITHER
@VARYING
@pytest.mark.parametrize("states", [serial.NARROW, serial.NARROW + 1, compiled.BLOCKS_FROM + 1])
@pytest.mark.parametrize("batch", [2, compiled.LANES_FROM])
def test_of_equally_good_paths_the_lowest_states_are_taken(
    batch: int, states: int, varying: str, dtype: torch.dtype
) -> None:
    """From a state in the middle on, all are equally probable; those before it are impossible."""
    given = random_problem(8, batch, 4, states, varying=varying, dtype=dtype)
    first = states // 2
    same = (torch.arange(states) >= first).to(dtype) / (states - first)
    potentials = given.potentials._replace(table=torch.zeros_like(given.potentials.table))
    transition = transition_of(same.expand_as(given.transition.matrix))
    expected = torch.where(potentials.inside(given.lengths), first, -1)
    for engine in (compiled, reference):
        path, _ = engine.viterbi(Belief(same.expand(batch, -1)), transition, potentials, given.lengths)
        assert path.equal(expected)


def path_scores(problem: Problem, path: Tensor) -> Tensor:
    """log p(z, x) of given paths: [B]."""
    inside = path >= 0
    z = path.clamp(min=0)
    batch = torch.arange(len(path))[:, None]
    observed = problem.potentials.gather().gather(-1, z.unsqueeze(-1)).squeeze(-1)
    moves = problem.matrices()[batch, torch.arange(path.shape[1] - 1), z[:, :-1], z[:, 1:]].log()
    first = problem.prior.probs.gather(-1, z[:, :1]).log()
    return torch.where(inside, observed + torch.cat([first, moves], 1), 0.0).sum(1)


def gradients(engine, problem: Problem) -> tuple[Tensor, ...]:
    """Of weighted log-norms and of the carried belief, in prior, matrix and table."""
    leaves = [problem.prior.probs, problem.transition.matrix, problem.potentials.table]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    potentials = problem.potentials._replace(table=leaves[2])
    log_norms, belief = engine.score(Belief(leaves[0]), transition_of(leaves[1]), potentials, problem.lengths)
    weights = torch.rand(log_norms.shape, generator=torch.Generator().manual_seed(1), dtype=problem.dtype)
    pull = torch.rand(belief.probs.shape, generator=torch.Generator().manual_seed(2), dtype=problem.dtype)
    finite = log_norms.masked_fill(log_norms == -torch.inf, 0.0)
    return torch.autograd.grad((weights * finite).sum() + (pull * belief.probs).sum(), leaves)


@EITHER
@SHAPES
def test_gradients(batch: int, states: int, dtype: torch.dtype) -> None:
    assert_same_gradients(problem_of(batch, states, dtype))


@EITHER
@VARYING
def test_gradients_where_transitions_vary(varying: str, dtype: torch.dtype) -> None:
    for batch in (1, 3, lanes.LANES + 1):
        assert_same_gradients(problem_of(batch, 5, dtype, varying))


def assert_same_gradients(problem: Problem) -> None:
    """Relative to the largest entry: sums over the batch grow with it."""
    for one, other in zip(gradients(compiled, problem), gradients(reference, problem), strict=True):
        size = other.abs().max().clamp(min=1.0) if other.numel() else 1.0
        assert_same(one / size, other / size)


@pytest.mark.parametrize(
    ("batch", "varying"), [(3, "no"), (compiled.LANES_FROM + 1, "no"), (3, "step"), (3, "sequence")]
)
def test_explicit_backward_by_finite_differences(batch: int, varying: str) -> None:
    """Of every log-norm (hence of any weights on them) and of the carried belief."""
    problem = random_problem(3, batch, 4, 3, varying=varying, missing=0.2, shortest=0)
    leaves = [problem.prior.probs, problem.transition.matrix, problem.potentials.table]

    def score(prior: Tensor, matrix: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        potentials = problem.potentials._replace(table=table)
        log_norms, belief = compiled.score(Belief(prior), transition_of(matrix), potentials, problem.lengths)
        return log_norms, belief.probs

    assert torch.autograd.gradcheck(score, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.usefixtures("restore_threads")
@EITHER
@pytest.mark.parametrize("batch", [3, 2 * lanes.LANES + 2])
def test_threads_do_not_change_results(batch: int, dtype: torch.dtype) -> None:
    problem = problem_of(batch, 7, dtype)
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(
            (
                compiled.expect(*problem),
                compiled.smooth(*problem),
                compiled.viterbi(*problem),
                gradients(compiled, problem),
            )
        )
    assert_same(*results)


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("states", [7, compiled.BLOCKS_FROM])
def test_the_same_threads_give_the_same_bits(threads: int, states: int) -> None:
    torch.set_num_threads(threads)
    problem = problem_of(2 * lanes.LANES + 2, states, torch.float32)
    first = [*gradients(compiled, problem), *compiled.smooth(*problem), compiled.expect(*problem).moves]
    for _ in range(3):
        again = [*gradients(compiled, problem), *compiled.smooth(*problem), compiled.expect(*problem).moves]
        assert all(one.equal(other) for one, other in zip(first, again, strict=True))


def test_dispatch() -> None:
    dense, values = Dense(torch.eye(2)), torch.zeros(3, 2)
    assert engines.engine(dense, values) is compiled
    assert engines.engine(dense, values.double()) is compiled
    assert engines.engine(dense, values.bfloat16()) is homogeneous
    assert engines.engine(dense, values.to("meta")) is homogeneous
    assert engines.engine(LowRank(torch.eye(2), torch.eye(2)), values) is homogeneous
    assert engines.engine(transition_of(torch.eye(2).expand(3, 1, 2, 2)), values.bfloat16()) is reference
    assert engines.engine(dense, values, ids=torch.zeros(1, 3, 2, dtype=torch.int64)) is reference


def test_without_numba_the_reference_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(3, 4)
    expected = discrete.counts(*problem)
    monkeypatch.setattr(engines, "optional_engine", lambda name: None)
    assert engines.engine(problem.transition, problem.potentials.table) is homogeneous
    assert_same(discrete.counts(*problem), expected)


def test_numba_is_not_needed() -> None:
    blocked = (
        "import sys; sys.modules['numba'] = None; from trellis.engines import *; assert not optional_engine('compiled')"
    )
    subprocess.run([sys.executable, "-c", blocked], check=True)


def test_inputs_are_left_alone() -> None:
    for batch in (3, lanes.LANES + 1):
        problem = problem_of(batch, 4)
        tensors = (problem.prior.probs, problem.transition.matrix, *problem.potentials[:2], problem.lengths)
        before = [tensor.clone() for tensor in tensors]
        assert_same_outputs(problem)
        gradients(compiled, problem)
        assert all(one.equal(other) for one, other in zip(tensors, before, strict=True))


def test_tensors_need_not_be_contiguous() -> None:
    problem = random_problem(4, 20, 5, 4, shortest=5)
    table, rows = problem.potentials[:2]
    turned = Problem(
        Belief(problem.prior.probs.T.contiguous().T),
        Dense(problem.transition.matrix.T.contiguous().T),
        Potentials(table.T.contiguous().T, rows.T.contiguous().T),
        problem.lengths,
    )
    assert_same(compiled.expect(*turned), compiled.expect(*problem))
    assert_same(compiled.viterbi(*turned), compiled.viterbi(*problem))


def broken(**changes: Tensor) -> Problem:
    """A problem of 3 sequences, 4 steps, 2 states and 4 symbols with something wrong."""
    good = random_problem(5, 3, 4, 2, shortest=4)
    prior = Belief(changes.get("prior", good.prior.probs))
    transition = transition_of(changes.get("matrix", good.transition.matrix))
    potentials = good.potentials._replace(rows=changes.get("rows", good.potentials.rows))
    return Problem(prior, transition, potentials, changes.get("lengths", good.lengths))


BROKEN = {
    "a token beyond the vocabulary": (broken(rows=torch.full((3, 4), 4)), "Token 4 is outside the vocabulary of 4"),
    "a negative length": (broken(lengths=torch.tensor([1, -1, 2])), "Lengths must be between 0 and the 4 steps"),
    "a length beyond the end": (broken(lengths=torch.tensor([1, 5, 2])), "Lengths must be between 0 and the 4 steps"),
    "too few lengths": (broken(lengths=torch.tensor([1, 2])), "lengths .* must have shape"),
    "a prior of another batch": (broken(prior=torch.rand(1, 2).double()), "prior .* must have shape"),
    "a prior of other states": (broken(prior=torch.rand(3, 1).double()), "prior .* must have shape"),
    "a matrix of other states": (broken(matrix=torch.rand(3, 3).double()), "transition .* must have shape"),
    "too few matrices": (broken(matrix=torch.rand(2, 2, 2).double()), "transition .* must have shape"),
    "matrices of one sequence": (broken(matrix=torch.rand(1, 3, 2, 2).double()), "transition .* must have shape"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_would_be_read_out_of_bounds_is_refused(name: str) -> None:
    problem, message = BROKEN[name]
    for function in (compiled.score, compiled.filter, compiled.smooth, compiled.expect, compiled.viterbi):
        with pytest.raises(TrellisError, match=message):
            function(*problem)
    if "vocabulary" not in message and "prior" not in message:
        filtered = torch.rand(3, 4, 2, dtype=torch.float64)
        with pytest.raises(TrellisError, match=message):
            compiled.sample(problem.transition, filtered, problem.lengths, filtered[..., 0])


def test_tokens_past_the_end_may_be_anything() -> None:
    problem = broken(rows=torch.tensor([[0, 1, 3, 99]] * 3), lengths=torch.tensor([3, 2, 3]))
    for engine in (compiled, reference):
        assert engine.score(*problem)[0].isfinite().all()
    assert_same(compiled.expect(*problem), reference.expect(*problem))
