"""Vectors and kernels: the compositions of the DenseHMM, its degrees of freedom, and what its non-linearity gains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.densehmm.metrics import dense_freedom, fair_states, standard_freedom
from trellis.families.hmm.parameters.embedding import (
    ROLES,
    EmbeddingParams,
)
from trellis.families.hmm.parameters.kernels import KERNELS, log_probabilities
from trellis.testing.close import assert_close
from trellis.testing.problems import random_vectors, seeded

STATES, SYMBOLS, LENGTH, OTHER = 4, 6, 2, 3
PLAIN = {
    "softmax": lambda x, y: np.exp(x @ y),
    "normAbsLin": lambda x, y: abs(x @ y),
    "sigmoid": lambda x, y: 1 / (1 + np.exp(-x @ y)),
    "relu": lambda x, y: np.log1p(np.exp(x @ y)),
    "rbf": lambda x, y: np.exp(-((x - y) ** 2).sum() / 2),
}


def vectors(runs: int | None = None) -> dict[str, torch.Tensor]:
    return random_vectors(STATES, SYMBOLS, LENGTH, OTHER, seed=1, runs=runs)


@pytest.mark.parametrize("name", KERNELS)
def test_probabilities_by_the_equations(name: str) -> None:
    given = vectors()
    params = EmbeddingParams(given, name, "softmax")
    u, z, start, v, w = (given[role].numpy() for role in ROLES)
    weights = np.array([[PLAIN[name](z_i, u_j) for u_j in u] for z_i in z])
    assert_close(params.log_transition().exp(), weights / weights.sum(1, keepdims=True))
    first = np.array([PLAIN[name](start, u_i) for u_i in u])
    assert_close(params.log_start().exp(), first / first.sum())
    shown = np.array([[PLAIN["softmax"](w_i, v_j) for v_j in v] for w_i in w])
    assert_close(params.log_emission().exp(), shown / shown.sum(1, keepdims=True))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_have_gradients_and_stand_large_numbers(name: str) -> None:
    x, y = (torch.randn(3, 2, generator=seeded(seed), dtype=torch.float64).requires_grad_() for seed in (1, 2))
    assert torch.autograd.gradcheck(lambda a, b: log_probabilities(KERNELS[name], a, b), [x, y])
    far = torch.tensor([[30.0, 0.0], [-30.0, 0.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    logs = log_probabilities(KERNELS[name], far, far)
    (gradient,) = torch.autograd.grad(logs.exp().square().sum(), far)
    assert logs.isfinite().all()
    assert gradient.isfinite().all()


def test_models_side_by_side_are_what_they_are_alone() -> None:
    given = vectors(runs=3)
    together = EmbeddingParams(given)
    for run in range(3):
        alone = EmbeddingParams({role: value[run] for role, value in given.items()})
        assert_close(together.log_start()[run], alone.log_start())
        assert_close(together.log_transition()[run], alone.log_transition())
        assert_close(together.log_emission()[run], alone.log_emission())


def test_some_vectors_are_frozen() -> None:
    params = EmbeddingParams(vectors())
    weights = params.weights(("z", "v"))
    assert [weight.shape for weight in weights] == [(STATES, LENGTH), (SYMBOLS, OTHER)]
    assert not params.u.requires_grad


def test_softmax_has_full_rank_where_the_product_has_not() -> None:
    for states, length in ((5, 1), (10, 3), (20, 4)):
        given = random_vectors(states, SYMBOLS, length)
        product = given["z"] @ given["u"].mT
        assert torch.linalg.matrix_rank(product) == length
        assert torch.linalg.matrix_rank(EmbeddingParams(given).log_transition().exp()) == states
        assert torch.linalg.matrix_rank(EmbeddingParams(given, "normAbsLin").log_transition().exp()) >= length


@pytest.mark.parametrize(("states", "symbols", "length"), [(3, 20, 1), (5, 19, 5), (10, 42, 10), (10, 5, 2)])
def test_degrees_of_freedom(states: int, symbols: int, length: int) -> None:
    freedom = sum(value.numel() for value in random_vectors(states, symbols, length).values())
    assert freedom == dense_freedom(states, symbols, length) == length * (3 * states + symbols + 1)
    assert standard_freedom(states, symbols) == (states - 1) + states * (states - 1) + states * (symbols - 1)
    positive = max(np.roots([1, symbols - 1, -1 - freedom]).real)
    assert fair_states(states, symbols, length) == round(positive)
    assert dense_freedom(states, symbols, length, 2) == sum(
        value.numel() for value in random_vectors(states, symbols, length, 2).values()
    )
