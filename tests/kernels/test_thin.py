"""Products of a large matrix with a few vectors, against BLAS."""

from __future__ import annotations

import os

import pytest
import torch

from trellis.kernels import thin
from trellis.transitions import Dense

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, STATES = 1031, 1021  # neither is a multiple of the width of a vector instruction
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-13}


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("number", [1, 2, 3, 4, 15, 64, 65])
@pytest.mark.parametrize("threads", [1, 3])
def test_times_few(number: int, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.kernels.team.size", lambda items: threads)
    draw = torch.Generator().manual_seed(number)
    matrix, vectors = (torch.rand(n, STATES, generator=draw, dtype=dtype) for n in (ROWS, number))
    assert thin.suits(matrix, vectors) == (number < 65 and thin.installed(thin.CPU.module) is not None)
    for _ in range(2):  # rows upwards, then downwards
        assert thin.times_few(matrix, vectors).allclose(vectors @ matrix.T, rtol=CLOSE[dtype], atol=0.0)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("number", [1, 2, 7, 64, 65])
@pytest.mark.parametrize("rows", [8, 15, 1031, 1032])
@pytest.mark.parametrize("threads", [1, 3])
def test_few_times(rows: int, number: int, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.kernels.team.size", lambda items: threads)
    monkeypatch.setattr(thin, "LARGE", 1)
    draw = torch.Generator().manual_seed(number)
    matrix = torch.rand(rows, thin.WIDTH // 2 + 77, generator=draw, dtype=dtype).requires_grad_()
    vectors = torch.rand(number, rows, generator=draw, dtype=dtype)
    with torch.no_grad():
        assert thin.suits(matrix, vectors, side=0) == (number < 65 and thin.installed(thin.CPU.module) is not None)
        found, backward = thin.few_times(vectors, matrix), thin.times_few(matrix, matrix[:2])
        assert found.allclose((vectors.double() @ matrix.double()).to(dtype), rtol=CLOSE[dtype], atol=0.0)
        assert backward.allclose(matrix[:2] @ matrix.T, rtol=CLOSE[dtype], atol=0.0)
    assert thin.few_times(vectors, matrix).requires_grad


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 8, 9, 16, 33, 64])
@pytest.mark.parametrize("shape", [(40, 300), (64, 256), (7, 1000)])
def test_times_few_by_triton(number: int, shape: tuple[int, int]) -> None:
    """Interpreted on a CPU, compiled on a GPU."""
    kernels = pytest.importorskip("trellis.kernels.thin.triton", reason="Triton is not installed")
    if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no GPU, and TRITON_INTERPRET is not 1")
    draw = torch.Generator().manual_seed(number)
    matrix, vectors = (torch.rand(n, shape[1], generator=draw).to(DEVICE) for n in (shape[0], number))
    expected = (vectors.double() @ matrix.double().T).float()
    torch.testing.assert_close(kernels.times(matrix, vectors), expected, rtol=1e-5, atol=0.0)
    down = kernels.few_times(vectors, matrix.T.contiguous())
    torch.testing.assert_close(down, expected, rtol=1e-5, atol=0.0)


@pytest.mark.skipif(DEVICE == "cpu", reason="no GPU")
@pytest.mark.parametrize("number", [1, 3, 8, 16, 17])
@pytest.mark.parametrize("dtype", CLOSE)
def test_times_few_on_a_gpu(number: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(number)
    matrix, vectors = (torch.rand(n, STATES, generator=draw, dtype=dtype).to(DEVICE) for n in (ROWS, number))
    assert thin.suits(matrix, vectors) == (number < 17 and dtype == torch.float32)
    expected = (vectors.double() @ matrix.double().T).to(dtype)
    torch.testing.assert_close(thin.times_few(matrix, vectors), expected, rtol=CLOSE[dtype], atol=0.0)


def test_gradients_and_other_shapes_use_blas() -> None:
    matrix = torch.rand(ROWS, STATES, requires_grad=True)
    thin.times_few(matrix, torch.rand(4, STATES)).sum().backward()
    assert matrix.grad is not None
    for width in (STATES - 1, STATES + 1):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            thin.times_few(matrix.detach(), torch.rand(4, width))
    square = torch.rand(ROWS, ROWS)
    for shape in ((ROWS,), (2, 3, ROWS)):
        message = torch.rand(shape)
        assert Dense(square).backward(message).allclose(message @ square.T)
        assert Dense(square).forward(message).allclose(message @ square)


@pytest.mark.parametrize("dtype", CLOSE)
def test_single_and_double_precision_do_not_mix(dtype: torch.dtype) -> None:
    """A product would otherwise have the precision of the matrix, whatever that of the vectors."""
    (other,) = set(CLOSE) - {dtype}
    moves, vectors = Dense(torch.rand(3, 3, dtype=dtype)), torch.rand(2, 3, dtype=other)
    for product in (moves.forward, moves.backward):
        with pytest.raises(RuntimeError, match="dtype"):
            product(vectors)
