"""Softmax transitions conform, with and without a mask; live states in groups give the same blocks as one by one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from trellis import engines
from trellis.emissions import Categorical
from trellis.engines import homogeneous
from trellis.families.hmm.model import written_out
from trellis.kernels.lse import tiled
from trellis.kernels.mask import draw_mask
from trellis.parts import Parts
from trellis.testing import check_transition
from trellis.testing.close import assert_close
from trellis.testing.problems import seeded
from trellis.transitions import Blocks, ClassBlocks, Dense, LazySoftmax, LogitBlocks, Softmax
from trellis.types import Belief, Groups, Potentials

STATES, DIM = 5, 3
HALF_TOLERANCE = 2e-2  # bfloat16 has eight bits


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiled.ENTRIES, "cpu", 2 * STATES)


def parameters() -> list[Tensor]:
    generator = seeded(17)
    return [torch.randn(STATES, DIM, generator=generator, dtype=torch.float64) for _ in range(2)]


def masked(rate: float, queries: Tensor, keys: Tensor) -> Softmax:
    states = torch.arange(STATES)
    return Softmax(queries, keys, draw_mask(0, torch.tensor(2), states, states, rate) if rate else None)


RATES = pytest.mark.parametrize("rate", [0.0, 0.4])


@RATES
def test_conformance(rate: float) -> None:
    check_transition(partial(masked, rate), *parameters())


def test_a_lazy_softmax_computes_nothing_at_once_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Softmax(*parameters())
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", True)
        lazy = LazySoftmax(whole)
    assert len(lazy.missing) == STATES
    assert_close(lazy.log_norm, whole.log_norm)


def test_normalisers_are_computed_when_they_are_used() -> None:
    whole = Softmax(*parameters())
    lazy = LazySoftmax(whole)
    assert len(lazy.missing) == STATES
    for rows, missing in (([1, 3], 3), ([3], 3), ([0], 2)):
        assert_close(lazy.rows(torch.tensor(rows)), whole.dense()[rows])
        assert len(lazy.missing) == missing
    before, after = torch.tensor([[1, 4]]), torch.tensor([[2, 0]])
    assert_close(lazy.blocks(before, after), whole.blocks(before, after))
    assert lazy.missing.tolist() == [2]
    groups = Groups(torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 1, 0]]))
    ids = groups.sets[groups.rows]
    with torch.no_grad():
        assert_close(LazySoftmax(whole).between(ids, groups).dense(), whole.between(ids, groups).dense())
    assert_close(lazy.columns(torch.tensor([4])), whole.columns(torch.tensor([4])))
    assert_close(lazy.log_norm, whole.log_norm)


@RATES
def test_is_the_softmax(rate: float) -> None:
    operator = masked(rate, *parameters())
    logits = operator.queries @ operator.keys.T
    if operator.mask is not None:
        logits = logits.masked_fill(~operator.mask.keeps(), -torch.inf)
        assert (operator.dense() == 0).any()
    assert_close(operator.dense(), logits.softmax(-1))


def test_a_row_that_keeps_nothing_is_zero() -> None:
    states = torch.arange(STATES)
    mask = draw_mask(0, torch.tensor(2), states, states, 0.99)
    queries, keys = (p.requires_grad_() for p in parameters())
    matrix, empty = Softmax(queries, keys, mask).dense(), ~mask.keeps().any(-1)
    logits = (queries @ keys.T).masked_fill(~mask.keeps(), -torch.inf)[~empty]
    assert empty.any()
    assert (matrix[empty] == 0).all()
    assert_close(matrix[~empty], logits.softmax(-1))
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(matrix.square().sum(), (queries, keys)))


@RATES
def test_groups(rate: float) -> None:
    sets = torch.tensor([[0, 3], [4, 1], [2, 0]])
    rows = torch.randint(3, (4, 6), generator=seeded(1))
    given = [p.requires_grad_() for p in parameters()]
    outcomes = []
    for groups in (None, Groups(sets, rows)):
        operator = masked(rate, *given)
        blocks = operator.between(sets[rows], groups)
        assert isinstance(blocks, Blocks)
        assert isinstance(blocks, LogitBlocks) == (groups is not None)
        weights = torch.rand(blocks.matrix.shape, generator=seeded(2), dtype=torch.float64)
        outcomes.append([blocks.matrix, *torch.autograd.grad((blocks.matrix * weights).sum(), given)])
    for one, other in zip(*outcomes, strict=True):
        assert_close(one, other)


def test_many_products_are_with_a_dense_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = masked(0.4, *parameters())
    assert operator.for_products(3) is operator
    dense = operator.for_products(10)
    assert isinstance(dense, Dense)
    assert_close(dense.dense(), operator.dense())
    monkeypatch.setattr("trellis.transitions.tiled.ROOM", STATES**2)
    assert operator.for_products(10) is operator


def test_the_matrix_in_bfloat16() -> None:
    """As in training on a GPU: queries, matrix and products are in bfloat16, sums and keys in float32."""
    generator = seeded(5)
    given = [torch.randn(STATES, DIM, generator=generator).requires_grad_() for _ in range(2)]
    prior = torch.rand(3, STATES, generator=generator)
    potentials = Potentials(torch.randn(4, STATES, generator=generator), torch.randint(4, (3, 6), generator=generator))
    outcomes = []
    for dtype in (torch.bfloat16, torch.float64):
        queries, keys = given[0].to(dtype), given[1].to(torch.promote_types(dtype, torch.float32))
        transition = Dense(Softmax(queries, keys, None, dtype).matrix)
        assert transition.matrix.dtype is dtype
        exact = Belief(prior.to(keys.dtype)), transition, potentials._replace(table=potentials.table.to(keys.dtype))
        norms, last = homogeneous.score(*exact, torch.tensor([6, 1, 4]))
        loss = norms.sum() + last.probs.square().sum()
        outcomes.append([norms, last.probs, *torch.autograd.grad(loss, given)])
    for low, exact in zip(*outcomes, strict=True):
        assert low.dtype is torch.float32
        assert 0 < (low - exact).norm() < HALF_TOLERANCE * exact.norm()


def test_a_dense_copy_has_full_precision_and_is_not_kept() -> None:
    exact = Softmax(*(value.float() for value in parameters()))
    low = Softmax(exact.queries.bfloat16(), exact.keys.clone().requires_grad_(), None, torch.bfloat16)
    with torch.no_grad():
        found = low.dense()
    assert found.dtype is torch.float32
    assert not found.requires_grad
    assert low.dense().requires_grad
    assert "matrix" not in vars(low)
    assert_close(found.sum(-1), torch.ones(STATES))
    assert (found - exact.dense()).norm() < HALF_TOLERANCE * exact.dense().norm()


def test_training_writes_the_matrix_in_low_precision() -> None:
    queries, keys = (value.float() for value in parameters())
    table = torch.zeros(4, STATES).log_softmax(0)
    moves = Softmax(queries.bfloat16(), keys.requires_grad_(), None, torch.bfloat16)
    parts = Parts(torch.full((STATES,), 1 / STATES), moves, Categorical(table, None, STATES))
    assert written_out(parts).transition.matrix.dtype is torch.bfloat16
    with torch.no_grad():
        evaluated = written_out(parts).transition.matrix
    assert evaluated.dtype is torch.float32
    assert not evaluated.requires_grad


def test_classes_of_a_small_model_are_trained_through_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, sets = seeded(3), torch.arange(6).view(3, 2)
    given = [torch.randn(6, DIM, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    rows = torch.randint(3, (4, 6), generator=generator)
    prior = torch.rand(4, 2, generator=generator, dtype=torch.float64)
    potentials = Potentials(torch.randn(3, 2, generator=generator, dtype=torch.float64), rows)
    outcomes = []
    for largest, kind in ((6, ClassBlocks), (5, LogitBlocks)):
        monkeypatch.setattr("trellis.transitions.softmax.LARGEST_MATRIX", largest)
        operator = Softmax(*given)
        blocks = operator.between(sets[rows], Groups(sets, rows, in_order=True))
        assert isinstance(blocks, kind)
        norms, last = engines.score(Belief(prior), blocks, potentials, torch.tensor([6, 1, 4, 6]))
        entered = operator.blocks(sets[rows[:, 0]], sets[rows[:, 1]])  # as from a carried distribution
        loss = norms.sum() + last.probs.square().sum() + entered.square().sum()
        outcomes.append([norms, last.probs, entered, *torch.autograd.grad(loss, given)])
    for one, other in zip(*outcomes, strict=True):
        assert_close(one, other)
