"""Nested transitions conform, and give the same blocks for classes as one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trellis import engines
from trellis.engines import reference
from trellis.kernels.lse import tiled
from trellis.testing import check_transition
from trellis.testing.close import assert_close
from trellis.testing.problems import seeded
from trellis.transitions import Blocks, Dense, Nested, PairBlocks
from trellis.types import Belief, Groups, Potentials

CLASSES, LIVE, DIM = 3, 2, 4
STATES = CLASSES * LIVE


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiled.ENTRIES, "cpu", 2 * STATES)


def parameters() -> list[Tensor]:
    generator = seeded(17)
    shapes = (STATES, DIM), (STATES, DIM), (STATES, CLASSES)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def nested(queries: Tensor, keys: Tensor, classes: Tensor) -> Nested:
    return Nested(queries, keys, classes.log_softmax(-1))


def test_conformance() -> None:
    check_transition(nested, *parameters())


def test_is_the_product_of_two_softmaxes() -> None:
    queries, keys, classes = parameters()
    expected = torch.empty(STATES, STATES, dtype=torch.float64)
    for z in range(STATES):
        for c in range(CLASSES):
            inside = slice(c * LIVE, (c + 1) * LIVE)
            weights = (keys[inside] @ queries[z]).exp()
            expected[z, inside] = classes[z].exp()[c] / classes[z].exp().sum() * weights / weights.sum()
    assert_close(nested(queries, keys, classes).dense(), expected)


def test_many_products_are_with_a_dense_matrix() -> None:
    operator = nested(*parameters())
    assert operator.for_products(3) is operator
    dense = operator.for_products(10)
    assert isinstance(dense, Dense)
    assert_close(dense.dense(), operator.dense())


def chain() -> tuple[Tensor, Groups]:
    sets, rows = torch.arange(STATES).view(CLASSES, LIVE), torch.randint(CLASSES, (4, 6), generator=seeded(1))
    return sets[rows], Groups(sets, rows, in_order=True)


def test_groups() -> None:
    ids, groups = chain()
    given = [p.requires_grad_() for p in parameters()]
    outcomes = []
    for some in (None, groups):
        blocks = nested(*given).between(ids, some)
        assert isinstance(blocks, Blocks)
        assert isinstance(blocks, PairBlocks) == (some is not None)
        weights = torch.rand(blocks.matrix.shape, generator=seeded(2), dtype=torch.float64)
        outcomes.append([blocks.matrix, *torch.autograd.grad((blocks.matrix * weights).sum(), given)])
    for one, other in zip(*outcomes, strict=True):
        assert_close(one, other)


def test_blocks_of_states_that_are_no_class() -> None:
    operator = nested(*parameters())
    before, after = torch.tensor([[0, 3, 5], [1, 1, 2]]), torch.tensor([[1, 2], [4, 0]])
    assert_close(operator.blocks(before, after), operator.dense()[before.unsqueeze(-1), after.unsqueeze(-2)])


@pytest.mark.parametrize("lengths", [[6, 6, 6, 6], [6, 1, 3, 0]])
def test_engines_share_the_matrix_of_a_pair(lengths: list[int]) -> None:
    ids, groups = chain()
    given = [p.requires_grad_() for p in parameters()]
    table = torch.randn(5, LIVE, generator=seeded(3), dtype=torch.float64).log_softmax(-1)
    potentials = Potentials(table, torch.randint(5, ids.shape[:2], generator=seeded(4)), all_observed=True)
    prior = Belief(torch.rand(4, LIVE, generator=seeded(5), dtype=torch.float64))
    outcomes = []
    for engine in (engines, reference):
        blocks = nested(*given).between(ids, groups)
        norms, last = engine.score(prior, blocks, potentials, torch.tensor(lengths))
        grads = torch.autograd.grad(norms.sum() + last.probs.square().sum(), given)
        outcomes.append([norms, last.probs, *grads])
    for one, other in zip(*outcomes, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("function", ["filter", "smooth", "expect", "viterbi"])
def test_inference(function: str) -> None:
    ids, groups = chain()
    with torch.no_grad():
        blocks = nested(*parameters()).between(ids, groups)
        plain = Blocks(blocks.dense())
    table = torch.randn(5, LIVE, generator=seeded(3), dtype=torch.float64).log_softmax(-1)
    potentials = Potentials(table, torch.randint(5, ids.shape[:2], generator=seeded(4)), all_observed=True)
    prior, lengths = Belief(torch.rand(4, LIVE, generator=seeded(5), dtype=torch.float64)), torch.tensor([6, 1, 3, 0])
    one, other = (getattr(engines, function)(prior, each, potentials, lengths) for each in (blocks, plain))
    for ours, theirs in zip(one, other, strict=True):
        ours, theirs = (value.probs if isinstance(value, Belief) else value for value in (ours, theirs))
        assert_close(ours, theirs)
