"""The products of a large matrix with a few vectors, where BLAS does not reach the speed of memory."""

from __future__ import annotations

from itertools import cycle
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.kernels import team
from trellis.kernels.optional import installed
from trellis.kernels.rows import times


class Compiled(NamedTuple):
    """Where the compiled code of a device is, and what it suits."""

    module: str
    vectors: range  # their number
    dtypes: tuple[torch.dtype, ...]


CPU = Compiled("kernels.thin.numba", range(1, 65), (torch.float32, torch.float64))
GPU = Compiled("kernels.thin.triton", range(1, 17), (torch.float32,))
COMPILED = {"cpu": CPU, "cuda": GPU}
LARGE = 1 << 20  # minimum entries of the matrix, for compiled code
ROWS, VECTORS = 6, 4  # rows and vectors that compiled code multiplies at a time in `times_few`
DEPTH, WIDTH = 8, 4096  # rows, and bytes of each row, that compiled code reads at a time in `few_times`
downwards = cycle((False, True))  # the order of the rows in successive products


def times_few(matrix: Tensor, vectors: Tensor) -> Tensor:
    """The product of a matrix [R, K] with each of n vectors [n, K]: [n, R]. A matrix in bfloat16 is multiplied with
    float32 vectors in bfloat16."""
    if is_low(matrix, vectors):
        return times(vectors, matrix.mT, matrix.mT)
    if not suits(matrix, vectors):
        return vectors @ matrix.T
    compiled = installed(COMPILED[matrix.device.type].module)
    assert compiled is not None
    return times_by_team(compiled, matrix, vectors) if matrix.device.type == "cpu" else compiled.times(matrix, vectors)


def times_by_team(compiled: ModuleType, matrix: Tensor, vectors: Tensor) -> Tensor:
    """`times_few` on several threads of a CPU."""
    special = {1: compiled.times_one, 2: compiled.times_two, 3: compiled.times_three}.get(len(vectors))
    rows, padded = len(matrix), 0 if special else -len(vectors) % VECTORS
    few = torch.nn.functional.pad(vectors, (0, 0, 0, padded)).contiguous().detach().numpy()
    found = torch.empty(len(few), rows, dtype=matrix.dtype)
    times = special or compiled.times
    team.share(times, team.size(rows // ROWS), matrix.detach().numpy(), few, found.numpy(), next(downwards))
    return found[: len(vectors)]


def few_times(vectors: Tensor, matrix: Tensor) -> Tensor:
    """The product of each of n vectors [n, R] with a matrix [R, K]: [n, K]. A matrix in bfloat16 is multiplied with
    float32 vectors in bfloat16."""
    if is_low(matrix, vectors):
        return times(vectors, matrix, matrix)
    if not suits(matrix, vectors, side=0):
        return vectors @ matrix
    compiled = installed(COMPILED[matrix.device.type].module)
    assert compiled is not None
    return few_by_team(vectors, matrix) if matrix.device.type == "cpu" else compiled.few_times(vectors, matrix)


def few_by_team(vectors: Tensor, matrix: Tensor) -> Tensor:
    """`few_times` on several threads of a CPU."""
    compiled, last = installed(CPU.module), len(matrix) // DEPTH * DEPTH
    assert compiled is not None
    repeated = vectors.new_zeros(len(vectors), -len(matrix) % DEPTH)  # the last rows are read twice
    few = torch.cat([vectors[:, :last], repeated, vectors[:, last:]], 1).detach().numpy()
    found = vectors.new_zeros(len(vectors), matrix.shape[1])
    team.share(compiled.few_times, team.size(matrix[0].nbytes // WIDTH), matrix.detach().numpy(), few, found.numpy())
    return found


def is_low(matrix: Tensor, vectors: Tensor) -> bool:
    return matrix.dtype is torch.bfloat16 and vectors.dtype is torch.float32


def suits(matrix: Tensor, vectors: Tensor, side: int = 1) -> bool:
    """Whether compiled code is available for the product of vectors with this side of a matrix."""
    code = COMPILED.get(matrix.device.type)
    return (
        code is not None
        and matrix.dim() == vectors.dim() == 2 and len(vectors) in code.vectors
        and matrix.shape[side] == vectors.shape[1]
        and matrix.numel() >= LARGE and len(matrix) >= DEPTH and matrix.is_contiguous()
        and matrix.dtype == vectors.dtype and matrix.dtype in code.dtypes
        and not (torch.is_grad_enabled() and (matrix.requires_grad or vectors.requires_grad))
        and installed(code.module) is not None
    )  # fmt: skip
