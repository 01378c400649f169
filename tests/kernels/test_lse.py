"""Row normalisers: tiles and Triton (interpreted on a CPU, compiled on a GPU) against the matrix written out."""

from __future__ import annotations

import lse_naive as naive
import pytest
import torch
from torch import Tensor

from trellis.kernels import lse, mask
from trellis.kernels.lse import tiled
from trellis.kernels.mask import draw_mask
from trellis.testing.close import assert_close

SIZES = [(1, 1), (5, 3), (70, 200), (129, 130)]
DIM = 32
CUDA = torch.cuda.is_available()
HALF_TOLERANCE = 3e-2  # bfloat16 has eight bits


@pytest.fixture(params=["plain", "masked"])
def rate(request: pytest.FixtureRequest) -> float:
    return 0.4 if request.param == "masked" else 0.0


def problem(rows: int, columns: int, rate: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, mask.Mask | None]:
    generator = torch.Generator().manual_seed(rows)
    q, k = (torch.randn(n, DIM, generator=generator, dtype=torch.float64).to(dtype) for n in (rows, columns))
    drawn = (
        draw_mask(3, torch.tensor(7), torch.arange(rows), torch.arange(columns), rate) if rate and columns > 3 else None
    )
    return q.requires_grad_(), k.requires_grad_(), drawn


def outcome(function, q: Tensor, k: Tensor, mask: object, *more: object) -> list[Tensor]:
    """The normalisers and the gradients of a weighted sum of them."""
    out = function(q, k, mask, *more)
    weights = torch.linspace(0.5, 2.0, len(out), dtype=out.dtype, device=out.device)
    return [out, *torch.autograd.grad((out * weights).sum(), [q, k])]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiles_agree_with_the_matrix(sizes, rate, dtype, monkeypatch) -> None:
    monkeypatch.setitem(tiled.ENTRIES, "cpu", 1 << 10)
    monkeypatch.setattr(tiled, "ROWS", 32)
    monkeypatch.setattr(tiled, "COLUMNS", 48)
    given = problem(*sizes, rate, dtype)
    for ours, expected in zip(outcome(lse.row_logsumexp, *given), outcome(naive.row_logsumexp, *given), strict=True):
        assert_close(ours, expected, 1e-4 if dtype is torch.float32 else 1e-10)


def test_logits_may_differ_much_between_tiles_and_rows_may_be_masked(monkeypatch) -> None:
    monkeypatch.setattr(tiled, "COLUMNS", 7)
    q, k, drawn = problem(20, 30, 0.97, torch.float64)
    steep = (k.detach() * torch.linspace(0.01, 100.0, 30)[:, None]).requires_grad_()
    exact = naive.row_logsumexp(q, steep, drawn)
    assert bool(exact.isinf().any())
    torch.testing.assert_close(lse.row_logsumexp(q, steep, drawn), exact, rtol=1e-12, atol=1e-12)


def test_gradients_by_finite_differences(rate) -> None:
    q, k, mask = problem(5, 4, rate, torch.float64)
    assert torch.autograd.gradcheck(lambda q, k: lse.row_logsumexp(q, k, mask), [q, k])


def test_softmaxes_of_a_few_rows_at_a_time_agree_with_the_matrix(monkeypatch) -> None:
    monkeypatch.setitem(tiled.ENTRIES, "cpu", 10)
    q, k, _ = problem(5, 4, 0.0, torch.float64)
    assert_close(lse.row_softmax(q, k), (q @ k.T).softmax(-1))
    assert torch.autograd.gradcheck(lse.row_softmax, [q, k])


def test_tiles_in_bfloat16(rate) -> None:
    q, k, mask = problem(70, 200, rate, torch.float32)
    exact = outcome(naive.row_logsumexp, q, k, mask)
    for ours, expected in zip(outcome(lse.row_logsumexp, q, k, mask, torch.bfloat16), exact, strict=True):
        assert ours.dtype is torch.float32
        assert (ours - expected).norm() < HALF_TOLERANCE * expected.norm()


@pytest.mark.parametrize("sizes", SIZES)
def test_triton_agrees_with_the_matrix(sizes, rate) -> None:
    triton = pytest.importorskip("trellis.kernels.lse.triton", reason="Triton is not installed")
    q, k, drawn = problem(*sizes, rate, torch.float32)
    exact = outcome(naive.row_logsumexp, q, k, drawn)
    if CUDA:
        q, k = (tensor.detach().cuda().requires_grad_() for tensor in (q, k))
        drawn = drawn and drawn._replace(rows=drawn.rows.cuda(), columns=drawn.columns.cuda())
    for ours, expected in zip(outcome(triton.RowLogSumExp.apply, q, k, drawn, q.dtype), exact, strict=True):
        assert_close(ours.cpu(), expected, 1e-4)


def test_triton_with_far_larger_logits_after_the_first(monkeypatch) -> None:
    triton = pytest.importorskip("trellis.kernels.lse.triton", reason="Triton is not installed")
    monkeypatch.setattr(triton, "LARGEST", 2.0**10)
    q, k, _ = problem(3, 200, 0.0, torch.float32)
    raised = (k.detach() + 0.005 * torch.arange(200)[:, None] * q.detach()[:1]).requires_grad_()
    logits = (q @ raised.T).detach()
    first = logits[:, : triton.FORWARD["COLUMNS"]].amax(1, keepdim=True)
    assert float((logits - first).exp().sum(1).max()) > triton.LARGEST
    exact = outcome(naive.row_logsumexp, q, raised, None)
    device = [tensor.detach().cuda().requires_grad_() if CUDA else tensor for tensor in (q, raised)]
    for ours, expected in zip(outcome(triton.RowLogSumExp.apply, *device, None, q.dtype), exact, strict=True):
        assert_close(ours.cpu(), expected, 1e-4)


def test_mask_leaves_out_its_share() -> None:
    for step in range(3):
        keeps = draw_mask(0, torch.tensor(step), torch.arange(300), torch.arange(200), 0.3).keeps().double()
        assert abs(float(keeps.mean()) - 0.7) < 0.01
        assert float((keeps.mean(0) - 0.7).abs().max()) < 0.15
        assert float((keeps.mean(1) - 0.7).abs().max()) < 0.15


@pytest.mark.parametrize(("seed", "step", "purpose"), [(0, 1, mask.STATES), (123456, 10**10, mask.ROWS)])
def test_the_gpu_draws_the_same_keys(seed: int, step: int, purpose: int) -> None:
    triton = pytest.importorskip("trellis.kernels.mask.triton", reason="Triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    now, ids = torch.tensor(step), torch.arange(3000) * 7
    base = (seed * mask.COLUMNS) & mask.WORD
    drawn = triton.keys(base, now.to(device), purpose, ids.to(device), mask.ROWS)
    assert torch.equal(drawn.cpu(), mask.keys(seed, now, purpose, ids))


@pytest.mark.parametrize(("classes", "size", "kept"), [(1, 1, 1), (3, 7, 2), (5, 16, 16), (4, 200, 100)])
def test_the_gpu_chooses_the_same_ids(classes: int, size: int, kept: int) -> None:
    triton = pytest.importorskip("trellis.kernels.mask.triton", reason="Triton is not installed")
    step = torch.tensor(5)
    keys = mask.keys(3, step, mask.STATES, torch.arange(classes * size)).view(classes, size)
    expected = keys.topk(kept).indices.sort().values + torch.arange(classes)[:, None] * size
    base = (3 * mask.COLUMNS) & mask.WORD
    device = step.to("cuda" if CUDA else "cpu")
    chosen = triton.choose(base, device, mask.STATES, classes, size, kept, mask.ROWS)
    assert torch.equal(chosen.cpu(), expected.flatten())


def test_masks_of_two_steps_are_independent() -> None:
    one, two = (
        draw_mask(0, torch.tensor(step), torch.arange(300), torch.arange(300), 0.5).keeps().double() for step in (1, 2)
    )
    assert abs(float((one * two).mean()) - 0.25) < 0.01


@pytest.mark.parametrize("rows", [1, 70, 1500])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_known_normalisers_are_used(rows: int, share: float) -> None:
    kernels = pytest.importorskip("trellis.kernels.lse.known", reason="Triton is not installed")
    states, generator = 300, torch.Generator().manual_seed(rows)
    table, keys = (torch.randn(n, DIM, generator=generator) for n in (states, 90))
    names = torch.randint(states, (rows,), generator=generator)
    ids = torch.randperm(states, generator=generator)[: round(share * states)].sort().values
    marked = torch.arange(len(ids)) + 100.0  # not the true normalisers: those given must be returned
    place = torch.full((states,), -1)
    place[ids] = torch.arange(len(ids))
    exact = torch.where(place[names] >= 0, place[names] + 100.0, naive.row_logsumexp(table[names], keys))
    given = [tensor.cuda() if CUDA else tensor for tensor in (table[names], keys, names, ids, marked)]
    assert_close(kernels.logsumexp(*given, states).cpu(), exact, 1e-4)


def test_each_unknown_state_is_listed_once() -> None:
    kernels = pytest.importorskip("trellis.kernels.lse.known", reason="Triton is not installed")
    device = "cuda" if CUDA else "cpu"
    names, ids = (torch.tensor(states, device=device) for states in ([4, 1, 4, 7, 1, 2, 4], [2, 5]))
    table = torch.full((9,), -1, dtype=torch.int32, device=device)
    listed, slots, count = (torch.full((n,), -1, dtype=torch.int32, device=device) for n in (7, 7, 1))
    kernels.mark_kernel[(1,)](table, names, ids, 7, 2, SIZE=16)
    kernels.list_kernel[(1,)](table, names, listed, slots, count, 7, SIZE=4)
    assert names[listed[: int(count)]].tolist() == [7, 1, 4]
    assert table.tolist() == [-1, 4, 7, -1, 6, 8, -1, 3, -1]
