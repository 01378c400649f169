"""Learning from co-occurrences: counting, the analytic matrix, and losses that never see m x m."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cooccurring import cooccurrences
from trellis.families.hmm.parameters.embedding import EmbeddingParams
from trellis.inference.stationary import stationary
from trellis.learning.cooccurrence import (
    DENSE_SYMBOLS,
    LOSSES,
    count_pairs,
    frequencies,
    joint_states,
    match,
    objective,
)
from trellis.testing.close import assert_close
from trellis.testing.oracle import sentences
from trellis.testing.problems import distributions, random_vectors, seeded

STATES, SYMBOLS = 3, 7


@pytest.fixture
def model() -> tuple[Tensor, Tensor]:
    return distributions(seeded(1), STATES, STATES), distributions(seeded(2), STATES, SYMBOLS)


def compose(params: EmbeddingParams) -> tuple[Tensor, Tensor]:
    return params.log_transition().exp(), params.log_emission().exp()


def test_counting_pairs() -> None:
    symbols, lengths = np.array([0, 2, 2, 1, -1, 0, 2, 2]), np.array([3, 1, 4])
    expected = np.zeros((3, 3))
    expected[0, 2] += 2
    expected[2, 2] += 2
    assert (count_pairs(symbols, lengths, 3).toarray() == expected).all()
    parts = count_pairs(symbols[:3], lengths[:1], 3) + count_pairs(symbols[3:], lengths[1:], 3)
    assert (parts.toarray() == expected).all()
    assert_close(frequencies(parts), expected / 4)


def test_many_symbols_stay_sparse() -> None:
    size = DENSE_SYMBOLS + 1
    omega = frequencies(count_pairs(np.array([0, size - 1, 0, size - 1, 5]), np.array([5]), size))
    assert omega.is_sparse
    assert omega.indices().shape == (2, 3)
    assert_close(omega.to_dense()[0, size - 1], torch.tensor(0.5))


def test_the_analytic_matrix_by_enumeration(model: tuple[Tensor, Tensor]) -> None:
    transition, emission = model
    every = sentences(stationary(transition).numpy(), transition[None].numpy(), emission.numpy())
    assert_close(cooccurrences(transition, emission), every)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalty", [0.0, 0.1])
@pytest.mark.parametrize("leading", [(), (4,)])
def test_sparse_losses_are_the_dense_ones(loss: str, penalty: float, leading: tuple[int, ...]) -> None:
    shapes = (*leading, STATES, STATES), (*leading, STATES, SYMBOLS)
    model = [distributions(seeded(1), *shape).requires_grad_() for shape in shapes]
    omega = cooccurrences(distributions(seeded(3), 4, 4), distributions(seeded(4), 4, SYMBOLS))
    omega = torch.where(omega > omega.median(), omega, 0.0)
    omega /= omega.sum()
    answers = []
    for given in (omega, omega.to_sparse()):
        value = objective(model[0], model[1], given, loss, penalty)
        assert value.shape == leading
        answers.append((value, *torch.autograd.grad(value.sum(), model)))
    for dense, sparse in zip(*answers, strict=True):
        assert_close(dense, sparse)


def test_losses_by_their_definitions(model: tuple[Tensor, Tensor]) -> None:
    transition, emission = model
    omega = cooccurrences(distributions(seeded(3), 2, 2), distributions(seeded(4), 2, SYMBOLS))
    found = cooccurrences(transition, emission)
    assert_close(objective(transition, emission, omega), (found - omega).square().sum())
    assert_close(objective(transition, emission, omega, "kl"), (omega * (omega / found).log()).sum())
    volume = torch.linalg.det(joint_states(transition)).abs().log()
    assert_close(objective(transition, emission, omega, penalty=0.3), (found - omega).square().sum() + 0.3 * volume)
    for loss in LOSSES:
        assert_close(objective(transition, emission, found, loss), torch.tensor(0.0))


def test_a_vocabulary_whose_matrix_would_not_fit() -> None:
    """100,000 symbols: m x m numbers would take 80 GB."""
    size, draw = 100_000, np.random.RandomState(0)
    omega = frequencies(count_pairs(draw.randint(size, size=2000), np.array([2000]), size))
    params = EmbeddingParams(random_vectors(STATES, size, 2))
    result = match(params.weights(("u", "z", "v", "w")), lambda: compose(params), omega, steps=2, lr=0.01)
    assert result.best < result.history[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_model_is_found_again(model: tuple[Tensor, Tensor], loss: str) -> None:
    """All vectors of several runs in one descent; the best of them has nearly the co-occurrences of the model."""
    omega = cooccurrences(*model)
    params = EmbeddingParams(random_vectors(STATES, SYMBOLS, STATES, runs=4))
    weights = params.weights(("u", "z", "v", "w"))
    result = match(weights, lambda: compose(params), omega, loss, steps=150, optimizer="lbfgs", lr=1.0)
    assert result.best.min() < 1e-3 * result.history[0].min()
    found = cooccurrences(*compose(params))[result.best.argmin()]
    assert (found - omega).abs().mean() < 1e-3 < omega.mean() / 10


def test_the_penalty_prefers_a_small_determinant(model: tuple[Tensor, Tensor]) -> None:
    volumes = []
    for penalty in (0.0, 1e-3):
        params = EmbeddingParams(random_vectors(STATES, SYMBOLS, STATES))
        weights = params.weights(("u", "z", "v", "w"))
        match(weights, lambda params=params: compose(params), cooccurrences(*model), "kl", penalty, 300, lr=0.01)
        volumes.append(torch.linalg.slogdet(joint_states(compose(params)[0])).logabsdet)
    assert volumes[1] < volumes[0]
