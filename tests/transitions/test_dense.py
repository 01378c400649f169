"""The dense operator: one matrix, one per step, one per sequence and step."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance import BATCH, STEPS, OperatorConformance, seeded
from oracle import SMALLEST_P, chi_square
from strategies import assert_close, distributions
from trellis.transitions import Dense, Transition
from trellis.transitions.base import invert

STATES = 4


class DenseConformance(OperatorConformance):
    leading: tuple[int, ...]

    def parameters(self) -> tuple[Tensor, ...]:
        return (distributions(seeded(10), *self.leading, STATES, STATES),)

    def build(self, *parameters: Tensor) -> Transition:
        return Dense(*parameters)

    def statistics(self, operator: Transition, pairs: Tensor) -> Tensor:
        return pairs.sum(dim=tuple(range(2 - len(self.leading)))) if len(self.leading) < 2 else pairs


class TestOneMatrix(DenseConformance):
    leading = ()

    def test_bilinear_is_the_gradient_over_the_matrix(self, operator: Dense, vectors: tuple[Tensor, Tensor]) -> None:
        matrix = operator.matrix.clone().requires_grad_()
        (Dense(matrix).forward(vectors[0]) * vectors[1]).sum().backward()
        assert_close(operator.expected(*vectors), operator.matrix * matrix.grad)


class TestMatrixPerStep(DenseConformance):
    leading = (STEPS - 1,)


class TestMatrixPerSequenceAndStep(DenseConformance):
    leading = (BATCH, STEPS - 1)


class TestHardZeros(DenseConformance):
    leading = ()

    def parameters(self) -> tuple[Tensor, ...]:
        lower = distributions(seeded(11), STATES, STATES).tril()
        return (lower / lower.sum(-1, keepdim=True),)


def test_inversion_draws_in_proportion_and_never_what_weighs_nothing() -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 2.0, 0.0])
    uniform = torch.rand(6000, generator=seeded(12))
    drawn = invert(weights.expand(6000, -1).contiguous(), uniform)
    assert chi_square(drawn.numpy(), (weights / weights.sum()).numpy()) > SMALLEST_P
    edges = invert(weights.expand(2, -1).contiguous(), torch.tensor([0.0, 1.0]))
    assert edges.tolist() == [1, 4]
