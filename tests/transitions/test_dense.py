"""The dense transition: one matrix; and blocks, one per step, or one per sequence and step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import (
    BATCH,
    LIVE,
    STEPS,
    CountableConformance,
    SamplableConformance,
    assert_varying,
    cut_out,
    seeded,
)
from oracle import SMALLEST_P, chi_square
from strategies import assert_close, distributions
from trellis.transitions import Blocks, Dense
from trellis.transitions.base import invert

STATES = 4


class TestDense(CountableConformance, SamplableConformance):
    def parameters(self) -> tuple[Tensor, ...]:
        return (distributions(seeded(10), STATES, STATES),)

    def build(self, *parameters: Tensor) -> Dense:
        return Dense(*parameters)

    def statistics(self, operator: Dense, pairs: Tensor) -> Tensor:
        return pairs.sum((0, 1))

    def test_expected_is_the_gradient_over_the_matrix(self, operator: Dense, vectors: tuple[Tensor, Tensor]) -> None:
        matrix = operator.matrix.clone().requires_grad_()
        (Dense(matrix).forward(vectors[0]) * vectors[1]).sum().backward()
        assert_close(operator.expected(*vectors), operator.matrix * matrix.grad)


class TestHardZeros(TestDense):
    def parameters(self) -> tuple[Tensor, ...]:
        lower = distributions(seeded(11), STATES, STATES).tril()
        return (lower / lower.sum(-1, keepdim=True),)


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
