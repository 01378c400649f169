"""Products of gathered matrices, and gathers with a backward pass of their own, against plain indexing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trellis.kernels import pairs
from trellis.kernels.rows import pick, pick_both, scaled_softmax, take
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
    ours = triton.summed_product(*(tensor.to(DEVICE) for tensor in given), 5)
    assert_close(ours.cpu(), pairs.summed_product(*given, 5), TOLERANCE)


@pytest.mark.parametrize("sizes", [(1, 1), (17, 3), (40, 140)])
def test_triton_weights(sizes: tuple[int, int]) -> None:
    triton = pytest.importorskip("trellis.kernels.pairs.triton", reason="Triton is not installed")
    a, b = sizes
    blocks, left, right = seeded(6, a, b), seeded(2, 4, a, seed=1), seeded(2, 4, b, seed=2)
    ours = triton.weighted(*(tensor.to(DEVICE) for tensor in (blocks, left, right)))
    pairs = left[:, :-1].unsqueeze(-1) * right[:, :-1].unsqueeze(-2)
    assert_close(ours.cpu(), blocks * pairs.flatten(0, 1), TOLERANCE)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("gather", ["both", "left", "right"])
@pytest.mark.parametrize("threads", [1, 3])
def test_compiled_product(
    sizes: tuple[int, int, int], gather: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = pytest.importorskip("trellis.kernels.pairs.compiled", reason="numba is not installed")
    monkeypatch.setattr(compiled.team, "size", lambda items: threads)
    a, b, c = sizes
    rows = None if gather == "right" else torch.tensor([3, 0, 0, 1, 2])
    columns = None if gather == "left" else torch.tensor([2, 2, 0, 1, 0])
    given = seeded(5, a, b).double(), seeded(5, c, b, seed=1).double().mT, rows, columns, torch.float64, torch.float64
    assert_close(compiled.gathered_product(*given), pairs.gathered_product(*given))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("index", [[1, 1, 4, 1, 0, 4, 1], [2] * 7])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_compiled_sum(
    sizes: tuple[int, int, int], index: list[int], transposed: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = pytest.importorskip("trellis.kernels.pairs.compiled", reason="numba is not installed")
    monkeypatch.setattr(compiled.team, "size", lambda items: threads)
    a, b, c = sizes
    left = seeded(7, b, a).mT if transposed else seeded(7, a, b)
    given = left.double(), seeded(3, b, c, seed=1).double(), torch.tensor([2, 0, 0, 1, 2, 1, 1]), torch.tensor(index)
    assert_close(compiled.summed_product(*given, 5), pairs.summed_product(*given, 5))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_pair_logits_and_gradients(steps: int) -> None:
    queries, keys = (seeded(3, 4, 5, seed=s).double().requires_grad_() for s in (1, 2))
    rows = torch.tensor([[0, 2, 2, 1], [1, 1, 0, 2]])[:, :steps]
    expected = queries[rows[:, :-1]] @ keys[rows[:, 1:]].mT
    assert_close(pairs.pair_logits(queries, keys, rows), expected)
    assert torch.autograd.gradcheck(lambda q, k: pairs.pair_logits(q, k, rows), [queries, keys])


@pytest.mark.parametrize(("rows", "width"), [(0, 3), (1, 1), (70, 5), (1100, 130), (60, 1500)])
def test_triton_sums_of_rows(rows: int, width: int) -> None:
    triton = pytest.importorskip("trellis.kernels.segments.triton", reason="Triton is not installed")
    rows = min(rows, 200) if DEVICE == "cpu" else rows
    values, index = seeded(rows, width), torch.randint(40, (rows,), generator=torch.Generator().manual_seed(0))
    ours = triton.add_rows(values.to(DEVICE), index.to(DEVICE), 50).cpu()
    assert_close(ours, torch.zeros(50, width).index_add(0, index, values), TOLERANCE)


@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (5, 3), (40, 70)])
def test_triton_picks(rows: int, dim: int) -> None:
    triton = pytest.importorskip("trellis.kernels.picks.triton", reason="Triton is not installed")
    values, index = (
        seeded(2 * rows, dim),
        torch.randperm(2 * rows, generator=torch.Generator().manual_seed(0))[:rows].sort().values,
    )
    picked, low = triton.pick(values.to(DEVICE), index.to(DEVICE), torch.float64)
    assert_close(picked.cpu(), values[index])
    assert_close(low.cpu(), values[index].double())
    grads = seeded(rows, dim, seed=1), seeded(rows, dim, seed=2)
    ours = triton.spread(*(grad.to(DEVICE) for grad in grads), index.to(DEVICE), 2 * rows)
    assert_close(ours.cpu(), torch.zeros(2 * rows, dim).index_copy(0, index, sum(grads)))


def test_indices_of_two_steps_are_contiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of a [B, 2] tensor flattens to a strided view, which Triton kernels would read as contiguous."""
    seen: list[torch.Tensor] = []
    product = pairs.gathered_product

    def spied(left: torch.Tensor, right: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.extend(rest[:2])
        return product(left, right, *rest)

    monkeypatch.setattr(pairs, "gathered_product", spied)
    monkeypatch.setattr(pairs, "engine_for", lambda values: pairs)
    rows = torch.tensor([[0, 2], [1, 1], [2, 0]])
    pairs.pair_logits(seeded(3, 4, 5), seeded(3, 4, 5, seed=1), rows)
    assert [index.is_contiguous() for index in seen] == [True, True]


def test_scaled_softmax() -> None:
    logits, scale = (values.double().requires_grad_() for values in (seeded(3, 2, 4), seeded(3, 2, seed=1)))
    assert_close(scaled_softmax(logits, scale), logits.softmax(-1) * scale.exp().unsqueeze(-1))
    assert torch.autograd.gradcheck(scaled_softmax, [logits, scale])


def test_gathers() -> None:
    values = seeded(4, 3).double().requires_grad_()
    many, once = torch.tensor([[0, 2], [2, 2]]), torch.tensor([3, 0])
    assert_close(take(values, many), values[many])
    assert_close(pick(values, once), values[once])
    assert torch.autograd.gradcheck(lambda v: take(v, many), [values])
    assert torch.autograd.gradcheck(lambda v: pick(v, once), [values])
    ascending = torch.tensor([0, 3])
    assert torch.autograd.gradcheck(lambda v: pick_both(v, ascending, torch.float64), [values])
    order = torch.tensor([2, 0, 3, 1])
    assert torch.autograd.gradcheck(lambda v: pick(v, order, order.argsort()), [values])
