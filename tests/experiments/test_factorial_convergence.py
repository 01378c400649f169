"""The bound sweep by sweep, and the number of sweeps until it stays where it is."""

from __future__ import annotations

import pytest
import torch

from experiments.factorial_hmm import convergence
from trellis.corpus import Vocabulary
from trellis.families.factorial.mean_field import infer
from trellis.families.factorial.model import FHMM
from trellis.types import Batch

ROUNDING = 1e-9  # of sums of logarithms, in float64


@pytest.fixture(scope="module")
def model() -> FHMM:
    """Two layers whose weights are large, so that a single sweep is not enough."""
    words = ["<eos>", "<unk>", *(f"w{n}" for n in range(8))]
    model = FHMM.new(Vocabulary(words, [1] * len(words)), (3, 4)).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(2 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def batch() -> Batch:
    tokens, fresh = torch.randint(10, (5, 7), generator=torch.Generator().manual_seed(1)), torch.ones(5, dtype=bool)
    return Batch(tokens, torch.tensor([7, 6, 5, 3, 1]), fresh, False, True)


@pytest.mark.parametrize("bound", ["tilted", "jensen"])
def test_sweep_by_sweep_is_all_sweeps_at_once(model: FHMM, batch: Batch, bound: str) -> None:
    bounds = convergence.sweep_by_sweep(model, batch, bound, 6)
    for sweeps in (1, 3, 6):
        once = infer(model.chains(), model.emission(), batch.tokens, batch.lengths, sweeps, bound)
        assert torch.allclose(bounds[sweeps - 1], once.bound / batch.lengths, rtol=0, atol=ROUNDING)
    assert (bounds.diff(dim=0) > -ROUNDING).all()
    assert (bounds[5] > bounds[0] + convergence.NEAR[0]).any()


def test_the_number_of_sweeps_that_are_needed() -> None:
    bounds = torch.tensor([[-3.0, -1.0], [-2.0, -1.0], [-1.0005, -1.0], [-1.0, -1.0]])
    assert convergence.needed(bounds, 0.001).tolist() == [3, 1]
    assert convergence.needed(bounds, 0.0001).tolist() == [4, 1]


def test_a_study(model: FHMM, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convergence, "SENTENCES", 6)
    assert len(convergence.some([batch] * 4)) == 2  # 20 sentences: every third batch
    found = convergence.study(model, [batch])
    assert set(found) == {"tilted, 0.01", "tilted, 0.001", "jensen, 0.01", "jensen, 0.001"}
    assert found["tilted, 0.01"]["sentences"] == 5
    assert 1 <= found["tilted, 0.01"]["median"] <= found["tilted, 0.001"]["median"] <= convergence.SWEEPS
    assert found["tilted, 0.01"]["few"] >= found["tilted, 0.001"]["few"]
