"""The M-step in one pass (interpreted on a CPU, compiled on a GPU) against the plain one in float64."""

from __future__ import annotations

import pytest
import torch

from trellis.dirichlet import most_probable
from trellis.emissions import Categorical
from trellis.kernels import estimates
from trellis.testing.close import assert_close

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


@pytest.mark.parametrize(("symbols", "states"), [(5, 3), (300, 3), (300, 20), (9, 1030)])
@pytest.mark.parametrize("pseudocount", [0.0, 0.1])
def test_log_columns(symbols: int, states: int, pseudocount: float) -> None:
    given, before = counts(symbols, states), old(states, symbols).T.log().contiguous()
    found = triton.log_columns(given.to(DEVICE), pseudocount, before.to(DEVICE))
    expected = Categorical(before.double(), None, states).maximised(given.double(), pseudocount).table
    assert_close(found.cpu(), expected, TOLERANCE)


def test_where_it_does_not_apply() -> None:
    given = torch.ones(2, 3)
    assert estimates.fused(given, 0.0, given) is None  # on a CPU
    if torch.cuda.is_available():
        there = given.cuda()
        assert estimates.fused(there, 0.0, there) is triton
        assert estimates.fused(there, -0.5, there) is None
        assert estimates.fused(there, there, there) is None
        assert estimates.fused(there.double(), 0.0, there.double()) is None
