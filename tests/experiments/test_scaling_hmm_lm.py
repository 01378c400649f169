"""The noise of state dropout, against every draw written out."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch

from corpora import split, vocabulary
from experiments.scaling_hmm_lm.dropout_variance import dense_logits, draw, dropout_variance, restricted_loss
from trellis.corpus.batches import Streams
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.types import Batch

EXACT = 1e-9
SUPPORT = torch.tensor([[0, 1], [2, 3], [2, 3], [2, 3], [0, 1], [0, 1], [2, 3]])
GROUPS = {"by_class": torch.tensor([[0, 1], [2, 3]]), "anywhere": torch.arange(4)[None]}


@pytest.fixture
def model() -> HMM:
    return HMM.new(vocabulary(), 4, seed=1, support=SUPPORT).to(torch.float64).requires_grad_(False)


@pytest.fixture
def batch() -> Batch:
    return next(iter(Streams(split(), 3, 6)))


def test_the_loss_is_that_of_the_smaller_model(model: HMM, batch: Batch) -> None:
    """Keeping states 1 and 2 of 4 is a model of two states whose start and transitions are normalised anew."""
    kept = torch.tensor([1, 2])
    start, transition, emission = model.parts()
    small = HMM.new(vocabulary(), 2, support=torch.tensor([[0, 1]] * 7)).to(torch.float64)
    begin, matrix = start[kept], transition.dense()[kept][:, kept]
    with torch.no_grad():
        small.params.start_logits.copy_(begin.log())
        small.params.transition_logits.copy_(matrix.log())
        small.params.emission_logits.copy_(emission.dense()[:, kept].clamp(min=-1e30))
    expected = -small.log_likelihood(batch, None)[0].detach() / batch.lengths.sum()
    loss = restricted_loss(dense_logits(model), SUPPORT, batch, kept)
    assert float(loss) == pytest.approx(float(expected), abs=EXACT)


@pytest.mark.parametrize("name", GROUPS)
def test_every_subset_is_drawn_alike(name: str) -> None:
    sizes = [sum(z in group for z in range(4)) // 2 for group in GROUPS[name].tolist()]
    choices = [combinations(group, size) for group, size in zip(GROUPS[name].tolist(), sizes, strict=True)]
    subsets = [tuple(sorted(sum(parts, ()))) for parts in product(*choices)]
    generator = torch.Generator().manual_seed(0)
    draws = [tuple(sorted(draw(GROUPS[name], 0.5, generator).tolist())) for _ in range(600)]
    cells = np.array([subsets.index(drawn) for drawn in draws])
    assert chi_square(cells, np.full(len(subsets), 1 / len(subsets))) > SMALLEST_P


@pytest.mark.parametrize("name", GROUPS)
def test_noise_is_that_of_all_gradients_side_by_side(model: HMM, batch: Batch, name: str) -> None:
    found = dropout_variance(model, batch, kept=0.5, draws=20, seed=5)
    generator = torch.Generator().manual_seed(5)
    losses, gradients = [], []
    for _ in range(20):
        logits = [value.clone().requires_grad_() for value in dense_logits(model)]
        loss = restricted_loss(logits, SUPPORT, batch, draw(GROUPS[name], 0.5, generator))
        if loss.isfinite():
            loss.backward()
            losses.append(loss.item())
            gradients.append(torch.cat([value.grad.flatten() for value in logits]).numpy())
    assert found[f"loss_{name}"] == pytest.approx(np.mean(losses), abs=EXACT)
    assert found[f"loss_deviation_{name}"] == pytest.approx(np.std(losses, ddof=1), abs=EXACT)
    spread, centre = np.var(gradients, axis=0, ddof=1).sum(), np.mean(gradients, axis=0)
    assert found[f"gradient_noise_{name}"] == pytest.approx(spread / (centre @ centre), abs=EXACT)
    assert found[f"impossible_{name}"] == pytest.approx(1 - len(losses) / 20)


def test_without_a_partition_some_draws_lose_a_whole_class(model: HMM, batch: Batch) -> None:
    found = dropout_variance(model, batch, kept=0.5, draws=60)
    assert found["impossible_by_class"] == 0
    assert 0 < found["impossible_anywhere"] < 0.7  # a third, where both classes occur


@pytest.mark.parametrize("support", [None, torch.tensor([[0, 1], [1, 2], [2, 3], [0, 1], [0, 1], [0, 1], [0, 1]])])
def test_by_class_needs_classes(batch: Batch, support: torch.Tensor | None) -> None:
    with pytest.raises(TrellisError, match="classes that share no states"):
        dropout_variance(HMM.new(vocabulary(), 4, support=support), batch, 0.5, 2)
