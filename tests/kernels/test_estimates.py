"""The M-step in one pass (interpreted on a CPU, compiled on a GPU) against the plain one in float64."""

from __future__ import annotations

import pytest
import torch

from trellis.dirichlet import most_probable
from trellis.emissions import Categorical
from trellis.kernels import estimates
from trellis.parts import Parts, Prior
from trellis.testing.close import assert_close
from trellis.transitions import Dense
from trellis.types import Counts

triton = pytest.importorskip("trellis.kernels.estimates.triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-6


def counts(rows: int, columns: int) -> torch.Tensor:
    """Some are zero, and so are all of the second row and of the third column."""
    found = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows)).sub_(0.2).clamp_(min=0)
    found[1], found[:, 2] = 0, 0
    return found


def old(rows: int, columns: int) -> torch.Tensor:
    weights = counts(rows + 1, columns)[:rows] + 1e-3
    weights[:, 4] = 0
    return weights / weights.sum(1, keepdim=True)


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (7, 1030)])
@pytest.mark.parametrize("pseudocount", [0.0, 0.1])
@pytest.mark.parametrize("keep_zeros", [False, True])
def test_rows(rows: int, columns: int, pseudocount: float, keep_zeros: bool) -> None:
    given, before = counts(rows, columns), old(rows, columns)
    found = triton.rows(given.to(DEVICE), pseudocount, before.to(DEVICE), keep_zeros)
    expected = most_probable(given.double(), pseudocount, before.double(), keep_zeros=keep_zeros)
    assert_close(found.cpu(), expected, TOLERANCE)
    over = given.to(DEVICE)
    assert triton.rows(over, pseudocount, before.to(DEVICE), keep_zeros, out=over) is over
    assert over.equal(found)


@pytest.mark.parametrize(("symbols", "states"), [(5, 3), (300, 3), (300, 20), (9, 1030)])
@pytest.mark.parametrize("pseudocount", [0.0, 0.1])
def test_log_columns(symbols: int, states: int, pseudocount: float) -> None:
    given, before = counts(symbols, states), old(states, symbols).T.log().contiguous()
    found = triton.log_columns(given.to(DEVICE), pseudocount, before.to(DEVICE))
    expected = Categorical(before.double(), None, states).maximised(given.double(), pseudocount).table
    assert_close(found.cpu(), expected, TOLERANCE)
    over = given.to(DEVICE)
    assert triton.log_columns(over, pseudocount, before.to(DEVICE), out=over) is over
    assert over.equal(found)


def parts(dtype: torch.dtype, device: str) -> Parts:
    start, matrix, table = old(2, 6)[0], old(6, 6), old(6, 9).T.log().contiguous()
    start, matrix, table = (value.to(device, dtype) for value in (start, matrix, table))
    return Parts(start, Dense(matrix), Categorical(table, None, 6))


@pytest.mark.parametrize("consume", [False, True])
def test_an_m_step_over_its_counts(consume: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new parameters take the memory of the counts only if the caller gives them up."""
    given = Counts(torch.zeros(()), counts(2, 6)[0], counts(6, 6), counts(9, 6))
    exact = parts(torch.float64, "cpu").maximised(Counts(*(value.double() for value in given)), Prior.same(0.1))
    monkeypatch.setattr(estimates, "fused", lambda *_: triton)
    mine = Counts(*(value.to(DEVICE) for value in given))
    found = parts(torch.float32, DEVICE).maximised(mine, Prior.same(0.1), consume=consume)
    assert_close(found.start.cpu(), exact.start, TOLERANCE)
    assert_close(found.transition.dense().cpu(), exact.transition.dense(), TOLERANCE)
    assert_close(found.emission.table.cpu(), exact.emission.table, TOLERANCE)
    assert (found.transition.dense() is mine.transition) == consume
    assert (found.emission.table is mine.emission) == consume
    assert consume or all(one.cpu().equal(other) for one, other in zip(mine, given, strict=True))


class Doubled(Categorical):
    def maximised(self, statistics: torch.Tensor, prior: float | torch.Tensor) -> Categorical:
        return super().maximised(2 * statistics, prior)


class Uniform(Dense):
    def maximised(self, statistics: torch.Tensor, pseudocount: float | torch.Tensor = 0.0) -> Dense:
        return Dense(torch.full_like(statistics, 1 / len(statistics)))


def test_the_m_step_of_a_subclass(monkeypatch: pytest.MonkeyPatch) -> None:
    """`consuming` is its own `maximised`."""
    monkeypatch.setattr(estimates, "fused", lambda *_: triton)
    _, transition, emission = parts(torch.float32, DEVICE)
    moves, emits = counts(6, 6).to(DEVICE), counts(9, 6).to(DEVICE)
    words = Doubled(emission.table, None, 6)
    assert words.maximised(emits, 0.1).table.equal(words.consuming(emits, 0.1).table)
    chain = Uniform(transition.dense())
    assert chain.maximised(moves).dense().equal(chain.consuming(moves).dense())


def test_where_it_does_not_apply() -> None:
    given = torch.ones(2, 3)
    assert estimates.fused(given, 0.0, given) is None  # on a CPU
    if torch.cuda.is_available():
        there = given.cuda()
        assert estimates.fused(there, 0.0, there) is triton
        assert estimates.fused(there, -0.5, there) is None
        assert estimates.fused(there, there, there) is None
        assert estimates.fused(there.double(), 0.0, there.double()) is None
