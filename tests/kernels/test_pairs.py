"""Products of gathered matrices, and gathers with a backward pass of their own, against plain indexing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trellis.kernels import pairs
from trellis.kernels.rows import pick, take
from trellis.testing.close import assert_close

SIZES = [(1, 1, 1), (5, 17, 3), (40, 70, 20)]
TOLERANCE = 1e-4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("gather", ["both", "left", "right"])
def test_triton_product(sizes: tuple[int, int, int], gather: str) -> None:
    triton = pytest.importorskip("trellis.kernels.pairs.triton", reason="Triton is not installed")
    a, b, c = sizes
    left, right = seeded(4, a, b), seeded(3, c, b, seed=1).mT
    rows = torch.tensor([3, 0, 0, 1, 2]) if gather != "right" else None
    columns = torch.tensor([2, 2, 0, 1, 0]) if gather != "left" else None
    if rows is None:
        left = seeded(5, b, a).mT
    if columns is None:
        right = seeded(5, b, c)
    given = [None if tensor is None else tensor.to(DEVICE) for tensor in (left, right, rows, columns)]
    ours = triton.gathered_product(*given, torch.float32, torch.float32).cpu()
    assert_close(ours, pairs.gathered_product(left, right, rows, columns, torch.float32, torch.float32), TOLERANCE)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("index", [[1, 1, 4, 1, 0, 4, 1], [2] * 7])
def test_triton_sum(sizes: tuple[int, int, int], index: list[int]) -> None:
    triton = pytest.importorskip("trellis.kernels.pairs.triton", reason="Triton is not installed")
    a, b, c = sizes
    given = seeded(7, b, a).mT, seeded(3, b, c, seed=1), torch.tensor([2, 0, 0, 1, 2, 1, 1]), torch.tensor(index)
    ours = triton.summed_product(*(tensor.to(DEVICE) for tensor in given), 5).cpu()
    assert_close(ours, pairs.summed_product(*given, 5), TOLERANCE)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_pair_logits_and_gradients(steps: int) -> None:
    queries, keys = (seeded(3, 4, 5, seed=s).double().requires_grad_() for s in (1, 2))
    rows = torch.tensor([[0, 2, 2, 1], [1, 1, 0, 2]])[:, :steps]
    expected = queries[rows[:, :-1]] @ keys[rows[:, 1:]].mT
    assert_close(pairs.pair_logits(queries, keys, rows), expected)
    assert torch.autograd.gradcheck(lambda q, k: pairs.pair_logits(q, k, rows), [queries, keys])


def test_indices_of_two_steps_are_contiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of a [B, 2] tensor flattens to a strided view, which Triton kernels would read as contiguous."""
    seen: list[torch.Tensor] = []
    product = pairs.gathered_product

    def spied(left: torch.Tensor, right: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.extend(rest[:2])
        return product(left, right, *rest)

    monkeypatch.setattr(pairs, "gathered_product", spied)
    rows = torch.tensor([[0, 2], [1, 1], [2, 0]])
    pairs.pair_logits(seeded(3, 4, 5), seeded(3, 4, 5, seed=1), rows)
    assert [index.is_contiguous() for index in seen] == [True, True]


def test_gathers() -> None:
    values = seeded(4, 3).double().requires_grad_()
    many, once = torch.tensor([[0, 2], [2, 2]]), torch.tensor([3, 0])
    assert_close(take(values, many), values[many])
    assert_close(pick(values, once), values[once])
    assert torch.autograd.gradcheck(lambda v: take(v, many), [values])
    assert torch.autograd.gradcheck(lambda v: pick(v, once), [values])
    order = torch.tensor([2, 0, 3, 1])
    assert torch.autograd.gradcheck(lambda v: pick(v, order, order.argsort()), [values])
