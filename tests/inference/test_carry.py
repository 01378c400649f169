"""The prior of a batch: carried over from the last one, or the start of the model."""

from __future__ import annotations

import pytest
import torch

from corpora import hmm
from trellis.inference.carry import Carry, training_prior
from trellis.testing.problems import distributions, seeded
from trellis.types import Batch, Belief


@pytest.mark.parametrize(
    ("fresh", "all_fresh"),
    [
        ((True, False), None),
        ((False, False), False),
        ((False, False), None),
        ((True, True), True),
        ((True, True), None),
    ],
)
def test_fresh_rows_begin_at_the_start(fresh: tuple[bool, bool], all_fresh: bool | None) -> None:
    parts = hmm().double().parts()
    before, where = distributions(seeded(0), 2, parts.num_states), torch.tensor(fresh)
    batch = Batch(torch.zeros(2, 3, dtype=torch.int64), torch.full((2,), 3), where, True, all_fresh)
    expected = torch.where(where.unsqueeze(-1), parts.start, before @ parts.transition.dense())
    carry = Carry(Belief(before), torch.zeros(2, dtype=torch.bool))
    torch.testing.assert_close(training_prior(carry, parts, batch, None).probs, expected)
    torch.testing.assert_close(training_prior(None, parts, batch, None).probs, parts.start.expand(2, -1))
