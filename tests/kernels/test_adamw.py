"""The fused update of AdamW with clipping and averaging, against torch's in float64."""

from __future__ import annotations

import pytest
import torch

from trellis.testing.close import assert_close

SIZES = (3,), (60, 90), (), (2048,)
TOLERANCE = 1e-5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RATE, SCALE, SHARE, BETAS, DECAY, STEPS = 0.1, 2.0, 0.3, (0.8, 0.95), 0.2, 4


def test_averages_of_weights_without_a_gradient() -> None:
    triton = pytest.importorskip("trellis.kernels.adamw.triton", reason="Triton is not installed")
    generator = torch.Generator().manual_seed(0)
    weights, before = ([torch.randn(size, generator=generator) for size in SIZES] for _ in range(2))
    here, averages = ([tensor.clone().to(DEVICE) for tensor in tensors] for tensors in (weights, before))
    table = triton.programs([weight.numel() for weight in weights], DEVICE)
    triton.average(here, averages, table, torch.tensor(SHARE, device=DEVICE))
    for ours, old, weight in zip(averages, before, weights, strict=True):
        assert_close(ours.cpu(), old + SHARE * (weight - old), TOLERANCE)


@pytest.mark.parametrize("averaged", [False, True])
def test_updates(averaged: bool) -> None:
    triton = pytest.importorskip("trellis.kernels.adamw.triton", reason="Triton is not installed")
    generator = torch.Generator().manual_seed(0)
    begun = [torch.randn(size, generator=generator) for size in SIZES]
    exact = [weight.double().requires_grad_() for weight in begun]
    theirs = torch.optim.AdamW(exact, lr=RATE, betas=BETAS, weight_decay=DECAY)
    means = [weight.detach().clone() for weight in exact]

    weights, averages = ([weight.clone().to(DEVICE) for weight in begun] for _ in range(2))
    firsts, seconds = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    steps = [torch.zeros((), device=DEVICE) for _ in weights]
    table = triton.programs([weight.numel() for weight in weights], DEVICE)
    rate, scale, share = (torch.tensor(value, device=DEVICE) for value in (RATE, SCALE, SHARE))
    for _ in range(STEPS):
        grads = [torch.randn(size, generator=generator) for size in SIZES]
        for weight, grad in zip(exact, grads, strict=True):
            weight.grad = grad.double() / SCALE
        theirs.step()
        means = [mean + SHARE * (weight.detach() - mean) for mean, weight in zip(means, exact, strict=True)]
        for step in steps:
            step += 1
        here = [grad.to(DEVICE) for grad in grads]
        rows = triton.Rows(weights, here, firsts, seconds, steps, averages if averaged else weights)
        triton.update(rows, table, rate, scale, share if averaged else None, triton.Hyper(*BETAS, 1e-8, DECAY))
    for ours, expected in zip(weights, exact, strict=True):
        assert_close(ours.cpu(), expected.detach(), TOLERANCE)
    for ours, expected in zip(averages, means if averaged else begun, strict=True):
        assert_close(ours.cpu(), expected, TOLERANCE)
