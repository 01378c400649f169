"""Moving a tensor towards another, against torch."""

from __future__ import annotations

import pytest
import torch

from trellis.kernels import lerp
from trellis.testing.close import assert_close

TOLERANCE = 1e-6


@pytest.mark.parametrize("shape", [(1,), (3, 7), (5000,)])
def test_triton(shape: tuple[int, ...]) -> None:
    triton = pytest.importorskip("trellis.kernels.lerp.triton", reason="Triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device) for seed in (0, 1))
    share, expected = torch.tensor(0.3, device=device), torch.lerp(x, y, 0.3)
    triton.lerp_(x, y, share)
    assert_close(x.cpu(), expected.cpu(), TOLERANCE)


def test_what_is_not_contiguous() -> None:
    x, y = torch.arange(6.0).view(2, 3).T, torch.ones(3, 2)
    expected = torch.lerp(x, y, 0.25)
    lerp.lerp_(x, y, torch.tensor(0.25))
    assert_close(x, expected)
