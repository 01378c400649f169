"""The dense transition: one matrix; and blocks, one per step, or one per sequence and step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from trellis.testing import check_transition
from trellis.testing.close import assert_close
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.testing.problems import distributions, seeded
from trellis.testing.transitions import BATCH, LIVE, STEPS, assert_varying, cut_out
from trellis.transitions import Blocks, Dense, base
from trellis.transitions.base import invert

STATES = 4


def pairs_of_states(operator: Dense, pairs: Tensor) -> Tensor:
    return pairs.sum((0, 1))


MATRICES = {
    "full": distributions(seeded(10), STATES, STATES),
    "zeros": (lower := distributions(seeded(11), STATES, STATES).tril()) / lower.sum(-1, keepdim=True),
}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_conformance(matrix: Tensor) -> None:
    check_transition(Dense, matrix, statistics=pairs_of_states)


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_expected_is_the_gradient_over_the_matrix(matrix: Tensor) -> None:
    left, right = torch.rand(2, BATCH, STEPS - 1, STATES, generator=seeded(1), dtype=torch.float64)
    given = matrix.clone().requires_grad_()
    (Dense(given).forward(left) * right).sum().backward()
    assert given.grad is not None
    assert_close(Dense(matrix).expected(left, right), matrix * given.grad)


@pytest.mark.parametrize("leading", [(STEPS - 1,), (BATCH, STEPS - 1)])
def test_blocks_that_vary(leading: tuple[int, ...]) -> None:
    matrix = distributions(seeded(10), *leading, STATES, STATES)
    full = matrix.expand(BATCH, STEPS - 1, STATES, STATES)
    assert_varying(Blocks(matrix), Blocks(full))
    ids = torch.rand(BATCH, STEPS, STATES, generator=seeded(3)).argsort(-1)[..., :LIVE]
    between = cut_out(full, ids[:, :-1], ids[:, 1:])
    assert_varying(Blocks(matrix).between(ids), Blocks(between))
    everything = torch.zeros_like(full)
    for b, t in np.ndindex(BATCH, STEPS - 1):
        everything[b, t][ids[b, t].unsqueeze(-1), ids[b, t + 1]] = between[b, t]
    collected = Blocks(matrix).collect(ids[:, :-1], ids[:, 1:], between)
    assert_close(collected, everything if len(leading) == 2 else everything.sum(0))


def test_inversion_draws_in_proportion_and_never_what_weighs_nothing() -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 2.0, 0.0])
    uniform = torch.rand(6000, generator=seeded(12))
    drawn = invert(weights.expand(6000, -1).contiguous(), uniform)
    assert chi_square(drawn.numpy(), (weights / weights.sum()).numpy()) > SMALLEST_P
    edges = invert(weights.expand(2, -1).contiguous(), torch.tensor([0.0, 1.0]))
    assert edges.tolist() == [1, 4]


def test_scores_of_some_sequences_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    dense = Dense(torch.rand(4, 4, generator=generator, dtype=torch.float64))
    scores = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    at_once = dense.max_product(scores)
    monkeypatch.setattr(base, "SUMMED", 50)  # three sequences
    for one, other in zip(dense.max_product(scores), at_once, strict=True):
        assert one.equal(other)
