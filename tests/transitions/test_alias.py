"""Alias tables against the weights that they were made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st

from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.transitions import alias
from trellis.transitions.alias import alias_tables

ROUNDING = 1e-6  # shares are kept in float32


def shares_of(table: alias.Alias) -> torch.Tensor:
    """What each outcome has in all slots together, in their number: [m, n]."""
    share = table.share.double()
    return share.scatter_add(-1, table.other.long(), 1 - share) / share.shape[1]


WEIGHTS = st.lists(st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1e6)), min_size=1, max_size=40)


@given(WEIGHTS.filter(lambda weights: sum(weights) > 0))
@example([0.0, 2e-311])  # whose reciprocal is infinite
def test_slots_add_up_to_the_weights(weights: list[float]) -> None:
    given_weights = torch.tensor([weights, weights[::-1]], dtype=torch.float64)
    table = alias_tables(given_weights)
    assert ((table.share >= -ROUNDING) & (table.share <= 1 + ROUNDING)).all()
    assert_close(shares_of(table), given_weights / given_weights.sum(-1, keepdim=True), ROUNDING)


def test_rows_are_split_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.rand(7, 5, generator=torch.Generator().manual_seed(0)) ** 4
    whole = alias_tables(weights)
    monkeypatch.setattr(alias, "LARGEST_TABLE", 11)
    parts = alias_tables(weights)
    assert torch.equal(whole.share, parts.share)
    assert torch.equal(whole.other, parts.other)


def test_draws_follow_the_weights() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(3, 50, generator=generator, dtype=torch.float64) ** 6
    weights[:, 7] = 0
    table, uniform = alias_tables(weights), torch.rand(20_000, generator=generator, dtype=torch.float64)
    for row, expected in enumerate(weights / weights.sum(-1, keepdim=True)):
        drawn = table.draw(torch.full((len(uniform),), row), uniform).numpy()
        assert chi_square(drawn, expected.numpy()) > SMALLEST_P
        assert not np.any(drawn == 7)


def test_a_row_without_weights_is_no_error() -> None:
    assert alias_tables(torch.zeros(1, 4)).share.isfinite().all()
