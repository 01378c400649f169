"""Dense transitions on a GPU, interpreted on a CPU or as CUDA graphs on a GPU, against the reference in float64."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from operators import flat
from trellis import engines
from trellis.emissions import Categorical
from trellis.engines import homogeneous, reference
from trellis.errors import TrellisError
from trellis.inference import discrete
from trellis.kernels import estimates
from trellis.learning.em import expect
from trellis.parts import Parts, Prior
from trellis.testing.problems import Problem, random_problem
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

pytest.importorskip("triton", reason="Triton is not installed")
CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)

from trellis.engines import graphed  # noqa: E402
from trellis.kernels.scan import passes  # noqa: E402

DEVICE = torch.device("cuda:0" if CUDA else "cpu")
NEEDS_GPU = pytest.mark.skipif(not CUDA, reason="torch sees no GPU")
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
COUNTED = 1e-3  # expected counts from which the relative error is bounded
FUNCTIONS = ["score", "filter", "smooth", "expect"]
SHAPES = [(1, 1, 1), (3, 4, 2), (2, 5, 17), (35, 3, 70)]


def single(problem: Problem) -> tuple[Belief, Dense, Potentials, Tensor]:
    """The problem in float32, on the device."""
    prior, transition, (table, rows, *_), lengths = problem
    matrix = transition.dense().to(DEVICE, torch.float32)
    potentials = Potentials(table.to(DEVICE, torch.float32), rows.to(DEVICE))
    return Belief(prior.probs.to(DEVICE, torch.float32)), Dense(matrix), potentials, lengths.to(DEVICE)


def assert_agree(ours: Any, exact: Any) -> None:
    for one, other in zip(flat(ours), flat(exact), strict=True):
        torch.testing.assert_close(one.cpu().double(), other.cpu().double(), **TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_ragged_batches_with_gaps_and_zeros(shape: tuple[int, int, int], function: str) -> None:
    problem = random_problem(3, *shape, symbols=9, zeros=0.1, missing=0.2, shortest=0)
    exact = getattr(reference, function)(*problem)
    for _ in range(3):  # run, captured, replayed
        assert_agree(getattr(graphed, function)(*single(problem)), exact)


def test_one_graph_serves_similar_shapes() -> None:
    before = dict(graphed.memory_of(DEVICE).passes)
    for batch, steps in ((3, 9), (5, 10), (2, 9)):
        problem = random_problem(batch, batch, steps, 20, symbols=5, shortest=1)
        assert_agree(graphed.expect(*single(problem)), reference.expect(*problem))
    assert len(graphed.memory_of(DEVICE).passes) <= len(before) + 1


def test_impossible_sequences_have_no_counts() -> None:
    problem = random_problem(1, 3, 5, 6, symbols=4, shortest=5)
    problem.potentials.table[2] = -torch.inf
    problem.potentials.rows[:] = torch.tensor([0, 1, 3, 1, 0])
    problem.potentials.rows[1, 2] = 2
    ours, exact = graphed.expect(*single(problem)), reference.expect(*problem)
    assert_agree(ours, exact)
    assert float(ours.log_norms[1].sum()) == -torch.inf
    assert float(ours.starts[1].abs().sum()) == 0.0
    assert float(ours.starts[0].sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("states", [60, 190])
def test_expected_transitions_in_chunks(states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory of their own (60 states), and in that of the matrix."""
    monkeypatch.setattr(passes, "FEW", 32)
    monkeypatch.setattr(passes, "ROWS", 40)
    graphed.memory_of.cache_clear()
    width = -(-states // passes.MULTIPLE) * passes.MULTIPLE
    assert (2 * len(passes.LEFT) * passes.ROWS <= 3 * width) == (states > 64)
    problem = random_problem(4, 20, 4, states, symbols=7, missing=0.1)
    for _ in range(3):
        assert_agree(graphed.expect(*single(problem)), reference.expect(*problem))
    graphed.memory_of.cache_clear()


@pytest.mark.parametrize("group", [1, 20, 100])
def test_expected_transitions_in_groups_of_steps(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more groups than the last of them leaves steps for, with several, and with one."""
    monkeypatch.setattr(passes, "GROUP", group)
    graphed.memory_of.cache_clear()
    problem = random_problem(6, 33, 4, 70, symbols=7, missing=0.1, shortest=0)
    for _ in range(3):
        assert_agree(graphed.expect(*single(problem)), reference.expect(*problem))
    (made,) = graphed.memory_of(DEVICE).passes.values()
    assert len(made.pairs) == min(passes.GROUPS, max(1, 3 * made.batch // group))
    graphed.memory_of.cache_clear()


def test_potentials_far_apart() -> None:
    """States 60 nats apart, of which the improbable one is the only one that can go on."""
    problem = random_problem(2, 2, 4, 3, symbols=2, shortest=4)
    problem.potentials.table[:] = torch.tensor([[0.0, -60.0, -5.0], [-60.0, 0.0, -70.0]], dtype=torch.float64)
    problem.transition.dense()[:] = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    assert_agree(graphed.expect(*single(problem)), reference.expect(*problem))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_does_not_fit_in_memory_is_cut_in_halves(function: str) -> None:
    problem = random_problem(5, 7, 4, 10, symbols=5, missing=0.1, shortest=0)
    find = passes.Memory.find

    def small(self: passes.Memory, batch: int, steps: int, states: int) -> passes.Passes:
        if batch > 2:
            raise torch.cuda.OutOfMemoryError
        return find(self, batch, steps, states)

    with mock.patch.object(passes.Memory, "find", small):
        found = getattr(graphed, function)(*single(problem))
    assert_agree(found, getattr(reference, function)(*problem))


def test_the_memory_of_halves_is_smaller() -> None:
    """What is computed beside the passes may not fit either, as long as they keep the memory of the whole batch."""
    problem, memory = random_problem(5, 40, 3, 10, symbols=5), graphed.memory_of(DEVICE)
    memory.release()
    score, sizes = graphed.Run.score, []

    def in_little_memory(run: graphed.Run) -> Any:
        sizes.append(len(memory.bytes))
        if sizes[-1] == sizes[0]:
            raise torch.cuda.OutOfMemoryError
        return score(run)

    in_little_memory.__name__ = "score"
    found = graphed.compute(in_little_memory, single(problem))
    assert len(sizes) == 3
    assert_agree(found, reference.score(*problem))


def test_released_memory_is_free_at_once() -> None:
    """Without waiting for the garbage collector, which knows nothing of the memory of a GPU."""
    memory = graphed.memory_of(DEVICE)
    memory.release()
    for _ in range(3):
        graphed.expect(*single(random_problem(5, 3, 4, 10, symbols=5)))
    found = [weakref.ref(one) for one in memory.passes.values()]
    gc.disable()
    try:
        memory.release()
        assert [one() for one in found] == [None]
    finally:
        gc.enable()


def test_one_sequence_that_does_not_fit_is_refused() -> None:
    problem = single(random_problem(5, 1, 4, 10, symbols=5))
    with (
        mock.patch.object(passes.Memory, "find", side_effect=torch.cuda.OutOfMemoryError),
        pytest.raises(TrellisError, match=r"One sequence of 4 steps over 10 states needs 0\.0 GiB of GPU memory"),
    ):
        graphed.score(*problem)


def test_recorded_gradients_are_left_to_plain_torch() -> None:
    prior, transition, potentials, lengths = single(random_problem(5, 2, 4, 3, symbols=5))
    leaf = transition.matrix.requires_grad_()
    graphed.score(prior, Dense(leaf), potentials, lengths)[0].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


def test_parts_are_exact() -> None:
    """Three bfloat16 numbers have the 24 bits of a float32; of their products the six largest keep them."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(64, 64, generator=generator) ** 8 for _ in range(2))

    def parts(values: Tensor) -> list[Tensor]:
        found, rest = [], values
        for _ in range(3):
            found.append(rest.bfloat16().double())
            rest = rest - rest.bfloat16().float()
        return found

    a, b = parts(x), parts(y)
    torch.testing.assert_close(sum(a), x.double(), rtol=2**-24, atol=0)
    pairs = zip(passes.LEFT, passes.RIGHT, strict=True)
    total = sum(a[i - 1] @ b[j - 1] for i, j in pairs)
    torch.testing.assert_close(total, x.double() @ y.double(), rtol=2**-23, atol=0)


def test_sizes_are_rounded_up_by_at_most_a_quarter() -> None:
    for size in range(1, 3000):
        assert size <= passes.rounded(size) <= max(size + 1, 1.25 * size)
        assert passes.rounded(size, 64) % 64 == 0
    assert len({passes.rounded(size) for size in range(1, 1025)}) < 40


class Large(TorchDispatchMode):
    """The largest number of tensors in memory at a time that have at least `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.alive, self.most = size, dict[int, StorageWeakRef](), 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, found)):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().nbytes() >= self.size:
                self.alive[tensor.untyped_storage()._cdata] = StorageWeakRef(tensor.untyped_storage())
        if self.count() > self.most:
            gc.collect()  # of what earlier tests have left in reference cycles
            self.most = max(self.most, self.count())
        return found

    def count(self) -> int:
        self.alive = {key: one for key, one in self.alive.items() if not one.expired()}
        return len(self.alive)


def test_an_em_step_holds_the_emissions_and_their_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other tensor of this size: the new emissions are written over the counts."""
    kernels = pytest.importorskip("trellis.kernels.estimates.triton")
    monkeypatch.setattr(estimates, "fused", lambda *_: kernels)
    monkeypatch.setattr(engines, "choose", lambda *_: graphed)
    prior, transition, potentials, lengths = single(random_problem(8, 3, 2, 5, symbols=20_000))
    parts = Parts(prior.probs[0].clone(), transition, Categorical(potentials.table, None, 5))
    graphed.memory_of.cache_clear()
    size, rows = potentials.table.nbytes, potentials.rows
    del potentials

    def improved(parts: Parts) -> Parts:
        counts, _ = expect(parts, rows, lengths)
        return parts.maximised(counts, Prior(), consume=True)

    with Large(size) as large:
        for _ in range(3):  # run, captured, replayed
            parts = improved(parts)
            discrete.log_likelihood(prior, parts.transition, Potentials(parts.emission.table, rows), lengths)
    assert large.most == 2


@NEEDS_GPU
def test_the_engine_is_chosen() -> None:
    _, transition, potentials, _ = single(random_problem(5, 2, 4, 3, symbols=5))
    assert engines.engine(transition, potentials.table) is graphed
    assert engines.engine(transition, potentials.table.double()) is homogeneous


@NEEDS_GPU
@pytest.mark.parametrize("states", [256, 1000])
def test_an_em_step_is_as_precise_as_float32_allows(states: int) -> None:
    """Log-likelihood per token and expected counts within 1e-5 of float64; the same bits every time."""
    generator = torch.Generator().manual_seed(states)
    transition, emission = (
        torch.rand(states, n, generator=generator, dtype=torch.float64).pow(8).add(1e-9).to(DEVICE)
        for n in (states, 500)
    )
    transition, emission = (p / p.sum(1, keepdim=True) for p in (transition, emission))
    start = torch.full((states,), 1 / states, dtype=torch.float64, device=DEVICE)
    tokens = torch.randint(-1, 500, (96, 21), generator=generator).to(DEVICE)
    lengths = torch.randint(1, 22, (96,), generator=generator).to(DEVICE)
    found = []
    for dtype in (torch.float64, torch.float32, torch.float32, torch.float32):
        parts = Parts(
            start.to(dtype), Dense(transition.to(dtype)), Categorical(emission.T.log().to(dtype), None, states)
        )
        counts, _ = expect(parts, tokens, lengths)
        found.append((*counts, *parts.maximised(counts, Prior()).transition.matrix[:1]))
    exact, first, second, third = found
    for ours, theirs in zip(first, exact, strict=True):
        relative = ((ours.double() - theirs) / theirs).abs()
        assert float(torch.where(theirs.abs() > COUNTED, relative, 0.0).max()) < 1e-5
    for one, other in zip(second, third, strict=True):
        assert bool((one == other).all())


@NEEDS_GPU
def test_functions_of_inference() -> None:
    problem = random_problem(9, 6, 11, 40, symbols=12, missing=0.1)
    prior, transition, potentials, lengths = single(problem)
    for function in (discrete.score, discrete.filter, discrete.smooth, discrete.counts):
        assert_agree(function(prior, transition, potentials, lengths), function(*problem))
    assert bool(
        (discrete.viterbi(prior, transition, potentials, lengths)[0].cpu() == discrete.viterbi(*problem)[0]).all()
    )
