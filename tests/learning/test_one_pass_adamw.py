"""The update in one pass over memory equals torch's AdamW, clipping and averaging."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trellis.config import TrainConfig
from trellis.kernels.optional import installed
from trellis.learning.adamw import AdamW
from trellis.learning.average import WeightAverage
from trellis.testing.close import assert_close

SIZES = (3,), (5, 7), (2,)
TOLERANCE = 1e-5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU, kernels are interpreted


def trained(fused: bool, averaged: bool, max_norm: float) -> tuple[list[torch.Tensor], list[torch.Tensor], list[float]]:
    """Weights, their averages and the norms of the gradients, after steps in which some weights have no gradient."""
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(size, generator=generator).to(DEVICE)) for size in SIZES]
    optimizer = AdamW(weights, TrainConfig(lr=0.1, beta1=0.8, beta2=0.95, weight_decay=0.2))
    if fused:
        optimizer.kernels = installed("kernels.adamw.triton")
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device=DEVICE)
    average, norms = WeightAverage(weights, 0.3) if averaged else None, []
    for step in range(4):
        for number, weight in enumerate(weights):
            has_gradient = number != 1 or step % 2
            weight.grad = torch.randn(weight.shape, generator=generator).to(DEVICE) if has_gradient else None
        if average:
            average.prepare(step)
        norms.append(float(optimizer.update(max_norm, average)))
    return [weight.detach() for weight in weights], list(average.averages.values()) if average else [], norms


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("max_norm", [0.7, 1e6])
def test_the_fused_update_is_torchs(averaged: bool, max_norm: float) -> None:
    if installed("kernels.adamw.triton") is None:
        pytest.skip("Triton is not installed")
    ours, theirs = trained(True, averaged, max_norm), trained(False, averaged, max_norm)
    for found, wanted in zip(ours[0] + ours[1], theirs[0] + theirs[1], strict=True):
        assert_close(found.cpu(), wanted.cpu(), TOLERANCE)
    assert ours[2] == pytest.approx(theirs[2], rel=TOLERANCE)
