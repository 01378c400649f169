"""The M-step of small tables in NumPy against loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.emissions import Categorical
from trellis.kernels import estimates
from trellis.kernels.estimates import arrays
from trellis.testing.close import assert_close

TOLERANCE = 1e-14
COUNTS = torch.tensor([[3.0, 0, 1, 2], [0, 0, 0, 0], [0, 5, 0, 0.5]], dtype=torch.float64)
OLD = torch.tensor([[0.5, 0.2, 0, 0.3], [0, 0.25, 0.75, 0], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
PSEUDOCOUNTS = [0.0, 0.1, -0.6, torch.tensor([[0.5, 0, 2, -1]] * 3, dtype=torch.float64)]


def by_loops(counts: Tensor, pseudocount: float | Tensor, old: Tensor, keep_zeros: bool) -> Tensor:
    found = old.clone()
    for row, (given, before) in enumerate(zip((counts + pseudocount).tolist(), old.tolist(), strict=True)):
        weights = [max(w, 0.0) if p > 0 or not keep_zeros else 0.0 for w, p in zip(given, before, strict=True)]
        if sum(weights) > 0:
            found[row] = old.new_tensor([w / math.fsum(weights) for w in weights])
    return found


@pytest.mark.parametrize("pseudocount", PSEUDOCOUNTS)
@pytest.mark.parametrize("keep_zeros", [False, True])
def test_rows(pseudocount: float | Tensor, keep_zeros: bool) -> None:
    assert estimates.fused(COUNTS, pseudocount, OLD) is arrays
    found = most_probable(COUNTS, pseudocount, OLD, keep_zeros=keep_zeros)
    assert_close(found, by_loops(COUNTS, pseudocount, OLD, keep_zeros), TOLERANCE)


@pytest.mark.parametrize("pseudocount", PSEUDOCOUNTS)
def test_log_columns(pseudocount: float | Tensor) -> None:
    turned = pseudocount.mT if isinstance(pseudocount, Tensor) else pseudocount
    found = Categorical(OLD.mT.log(), None, 3).maximised(COUNTS.mT, turned).table
    assert_close(found, by_loops(COUNTS, pseudocount, OLD, keep_zeros=False).mT.log(), TOLERANCE)


def test_inputs_are_unchanged() -> None:
    counts, old = COUNTS.clone(), OLD.clone()
    arrays.rows(counts, 0.5, old, True)
    arrays.log_columns(counts, 0.5, old)
    assert counts.equal(COUNTS)
    assert old.equal(OLD)


def test_where_it_does_not_apply() -> None:
    large = torch.ones(2, estimates.SMALL, dtype=torch.float64)
    for given in (large, COUNTS.float(), COUNTS.clone().requires_grad_(), COUNTS[:0]):
        assert estimates.fused(given, 0.0, given) is None
