"""LayerNorm of a sum, and rectified layers, against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trellis.kernels import norm
from trellis.kernels.rows import WithRectified, rectified
from trellis.testing.close import assert_close

TOLERANCE = 1e-4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given(rows: int, dim: int) -> list[Tensor]:
    """x, y, scale, shift."""
    return [drawn(rows, dim, seed=1), 3 * drawn(rows, dim, seed=2), drawn(dim, seed=3), drawn(dim, seed=4)]


def formula(x: Tensor, y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    total = x + y
    centred = total - total.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale + shift


def test_numbers_of_float64_keep_their_precision() -> None:
    found = norm.add_norm(*(tensor.to(DEVICE) for tensor in given(5, 7)))
    assert_close(found.cpu(), formula(*given(5, 7)))


@pytest.mark.parametrize(("rows", "dim"), [(1, 2), (37, 7), (300, 64)])
def test_triton(rows: int, dim: int) -> None:
    triton = pytest.importorskip("trellis.kernels.norm.triton", reason="Triton is not installed")
    exact = [tensor.requires_grad_() for tensor in given(rows, dim)]
    single = [tensor.detach().float().to(DEVICE).requires_grad_() for tensor in exact]
    weights = drawn(rows, dim, seed=5)
    theirs, ours = formula(*exact), triton.AddNorm.apply(*single)
    assert_close(ours.cpu().double(), theirs, TOLERANCE)
    expected = torch.autograd.grad((theirs * weights).sum(), exact)
    found = torch.autograd.grad((ours * weights.float().to(DEVICE)).sum(), single)
    for one, other in zip(found, expected, strict=True):
        assert_close(one.cpu().double(), other, TOLERANCE * rows)


def test_rectified() -> None:
    leaves = [drawn(4, 3, seed=1), drawn(5, 3, seed=2), drawn(5, seed=3)]
    x, weight, bias = (leaf.requires_grad_() for leaf in leaves)
    assert_close(rectified(x, weight, bias), (x @ weight.T + bias).relu())
    assert torch.autograd.gradcheck(rectified, [x, weight, bias])


def test_rectified_layers_beside_their_input() -> None:
    leaves = [drawn(*shape, seed=seed) for seed, shape in enumerate([(4, 3), (5, 3), (5,), (3, 5), (3,)], 1)]
    x, inner, a, outer, b = (leaf.requires_grad_() for leaf in leaves)
    same, out = WithRectified.apply(x, inner, a, outer, b)
    assert_close(same, x)
    assert_close(out, ((x @ inner.T + a).relu() @ outer.T + b).relu())
    assert torch.autograd.gradcheck(WithRectified.apply, leaves)
    fixed = x.detach()
    assert torch.autograd.gradcheck(lambda *weights: WithRectified.apply(fixed, *weights)[1], leaves[1:])
