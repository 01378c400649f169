"""One width of the inside pass and its adjoint: Triton's kernels and compiled code, against plain torch."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from trellis.kernels import inside
from trellis.kernels.optional import installed

LENGTH, RANK = 4, 5
WORDS = (4, 2, 0)  # of the sentences
EXACT = 1e-12
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=["compiled", "triton"])
def way(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("triton" if request.param == "triton" else "numba")
    if request.param == "triton" and DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no GPU, and TRITON_INTERPRET is not 1")
    return str(request.param)


def choose(way: str, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inside, "on_cpu", lambda chart: way == "compiled")
    patch.setattr(inside, "on_gpu", lambda chart: installed("kernels.inside.triton") if way == "triton" else None)


def passes(device: str) -> list[Tensor]:
    """All charts after both passes over single words."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(device)

    count, batch = inside.begin(LENGTH, LENGTH + 1), len(WORDS)
    left, right, outer = (random(count, batch, RANK) for _ in range(3))
    left_adjoint, right_adjoint = (random(count, batch, RANK) for _ in range(2))
    g, scales = torch.zeros_like(left), torch.full((count, batch), -torch.inf, dtype=torch.float64, device=device)
    for sentence, words in enumerate(WORDS):
        scales[:words, sentence] = -100 * random(words)
    for width in range(2, LENGTH + 1):
        inside.join(left, right, scales, g, LENGTH, width)
    for width in range(LENGTH, 0, -1):
        inside.spread(left, right, scales, outer, left_adjoint, right_adjoint, LENGTH, width)
    return [g, scales, left_adjoint, right_adjoint]


def test_both_passes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("torch", monkeypatch)
    expected = passes("cpu")
    choose(way, monkeypatch)
    if way == "triton":  # a second block of ranks, which is not full
        monkeypatch.setattr(installed("kernels.inside.triton"), "RANKS", 4)
    for found, wanted in zip(passes(DEVICE if way == "triton" else "cpu"), expected, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=EXACT, atol=EXACT)
    assert bool((expected[1][inside.begin(LENGTH, 2), :2] > -torch.inf).all())


def test_a_chart_on_the_cpu_has_no_kernels() -> None:
    assert inside.on_gpu(torch.zeros(1, 1, RANK)) is None
