"""Products of pairs of matrices that are selected by index, on a CPU (numba), without copying the matrices."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from trellis.kernels import team

THREAD_WORTH = 1_000_000  # multiplications for which it is worth waking a thread


@njit(nogil=True, cache=True)
def gather(worker, workers, left, right, rows, columns, out):
    """out[m] = left[rows[m]] right[columns[m]]': [G, a, b], [H, c, b], [M], [M] -> [M, a, c]."""
    for m in range(worker, len(out), workers):
        np.dot(left[rows[m]], right[columns[m]].T, out[m])


@njit(nogil=True, cache=True)
def add(worker, workers, left, transposed, right, columns, order, begins, out):
    """Add to out[i] the products left[m] right[columns[m]] for all m in order[begins[i] : begins[i + 1]]. If
    `transposed` is true, left[m] is transposed first."""
    part = np.empty(out.shape[1:], out.dtype)
    for i in range(worker, len(out), workers):
        for m in order[begins[i] : begins[i + 1]]:
            if transposed:
                np.dot(left[m].T, right[columns[m]], part)
            else:
                np.dot(left[m], right[columns[m]], part)
            out[i] += part


def share(work: Callable[..., None], products: int, size: int, *arguments: Any) -> None:
    """Run a kernel in threads; it computes `products` products of `size` multiplications each."""
    with team.OneBlasThread():
        team.share(work, team.size(1 + products * size // THREAD_WORTH), *arguments)


def gathered_product(
    left: Tensor, right: Tensor, rows: Tensor | None, columns: Tensor | None, out: torch.dtype, low: torch.dtype
) -> Tensor:
    """The product left[rows[m]] right[columns[m]] for every m (if `rows` or `columns` is None, the index is m):
    [G, a, b], [H, b, c], [M], [M] -> [M, a, c]."""
    index = columns if rows is None else rows
    count = len(left) if index is None else len(index)
    everything = torch.arange(count)
    rows, columns = everything if rows is None else rows, everything if columns is None else columns
    made = torch.empty(count, left.shape[1], right.shape[2], dtype=left.dtype)
    operands = (t.contiguous().numpy() for t in (left, right.mT, rows, columns, made))
    share(gather, count, made[0].numel() * left.shape[2] if count else 0, *operands)
    return made


def summed_product(left: Tensor, right: Tensor, columns: Tensor, index: Tensor, count: int) -> Tensor:
    """out[i] = sum of left[m] right[columns[m]] over all m with index[m] = i:
    [M, a, b], [H, b, c], [M], [M] -> [count, a, c]."""
    transposed = not left.is_contiguous()
    made = torch.zeros(count, left.shape[1], right.shape[2], dtype=left.dtype)
    order = index.argsort(stable=True)
    begins = torch.searchsorted(index[order], torch.arange(count + 1))
    arrays = [t.contiguous().numpy() for t in (left.mT if transposed else left, right, columns, order, begins, made)]
    size = made[0].numel() * left.shape[2] if count else 0
    share(add, len(left), size, arrays[0], transposed, *arrays[1:])
    return made
