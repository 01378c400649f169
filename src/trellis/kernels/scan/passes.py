"""The forward and backward passes of dense.py over a batch, as CUDA graphs. Each padded shape has its own graphs; all
of them use the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trellis.kernels.lse.tiled import product
from trellis.kernels.scan import dense, ends

TINY = torch.finfo(torch.float32).tiny
MULTIPLE = 64  # states are padded to a multiple of this
ROWS = 1024  # products added before they are rounded to nearest
FEW = 512  # up to this many states, expected transitions are computed by one kernel
GROUP, GROUPS = 256, 16  # steps and maximum number of the sums that this kernel computes side by side
LEFT, RIGHT = (3, 2, 1, 2, 1, 1), (1, 2, 3, 1, 2, 1)  # the pairs of parts that are multiplied, smallest first
INNER = 32  # steps that are multiplied at a time
BLOCK = 512  # states that a kernel loads at a time
VISITED = 4096  # posteriors that are added at a time
SUMMED = 512  # sums over tiles of states that are added at a time


class Tiles(NamedTuple):
    """The sequences, states and summands of a tile of a matrix product, and its launch parameters."""

    BM: int
    BN: int
    BK: int
    num_warps: int
    num_stages: int


def tiles_for(batch: int, states: int) -> Tiles:
    """The fastest tiles, as measured on an H200."""
    if batch <= 32:
        return Tiles(32, 64, 64, 4, 4) if states > 2048 else Tiles(16, 32, 128 if states % 128 == 0 else 64, 4, 3)
    if batch <= 64 or states <= 2048:
        return Tiles(64, 32 if states <= 2048 else 64, 64, 4, 3)
    return Tiles(128, 64, 64, 8, 3)


def rounded(size: int, multiple: int = 1) -> int:
    """The size, rounded up by at most a quarter or to the next multiple, so that similar sizes share a graph."""
    unit = max(multiple, 1 << max(0, size.bit_length() - 3))
    return -(-max(size, 1) // unit) * unit


def padded(batch: int, steps: int, states: int) -> tuple[int, int, int]:
    """Steps, sequences and states, rounded up."""
    return rounded(steps), rounded(batch, tiles_for(batch, states).BM), -(-states // MULTIPLE) * MULTIPLE


def memory_needed(batch: int, steps: int, states: int) -> int:
    """The number of bytes that a problem needs on a GPU."""
    arrays = layout(*padded(batch, steps, states), tiles_for(batch, states).BN, torch.bfloat16)
    return sum(size(*array) for array in arrays.values())


class Recorded:
    """Runs a function that works on fixed memory: the first call runs it, the second one captures it as a CUDA graph,
    and later calls replay the graph. The function itself is not stored, because it would keep the memory alive."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu, self.calls = on_gpu, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], None]) -> None:
        self.calls += 1
        if not self.on_gpu or self.calls == 1:
            work()
            return
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
            self.graph = graph
        self.graph.replay()


class Memory:
    """The memory of a device that the passes of all shapes share."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8, device=device)
        self.passes: dict[tuple[int, int, int], Passes] = {}

    def find(self, batch: int, steps: int, states: int) -> Passes:
        """The `Passes` for a shape, which is rounded up."""
        tiles, key = tiles_for(batch, states), padded(batch, steps, states)
        if key not in self.passes:
            arrays = layout(*key, tiles.BN, torch.bfloat16 if self.bytes.is_cuda else torch.float32)
            need = sum(size(*array) for array in arrays.values())
            if need > len(self.bytes):
                self.release()
                self.bytes = torch.empty(need, dtype=torch.uint8, device=self.bytes.device)
            self.passes[key] = Passes(tiles, carve(self.bytes, arrays))
        return self.passes[key]

    def release(self) -> None:
        """Free the memory, and the graphs that use it."""
        self.passes.clear()
        self.bytes = self.bytes.new_empty(0)


Arrays = dict[str, tuple[tuple[int, ...], torch.dtype]]


def layout(steps: int, batch: int, states: int, tile: int, low: torch.dtype) -> Arrays:
    """The shapes and types of the arrays of `Passes`."""
    tiles, number = triton.next_power_of_2(states // tile), torch.float32
    return {
        "priors": ((batch, states), number),
        "lengths": ((batch,), torch.int32),
        "last": ((batch,), torch.int32),
        "matrix": ((3, states, states), low),
        "parts": ((2, 3, batch, states), low),
        "weights": ((steps, batch, states), number),  # o_t, then w_t
        "joint": ((steps, batch, states), number),  # j_t
        "scale": ((steps, batch), number),
        "keys": ((steps, batch), torch.int32),
        "sums": ((steps, batch, tiles), number),  # c_t
        "dots": ((steps, batch, tiles), number),  # d_t
        "norm": ((steps, batch), number),
        "gain": ((steps, batch), number),  # 1 / d_t
        "shares": ((steps, batch), number),  # 1 / (c_{t-1} d_t)
        "sorted": ((steps * batch,), torch.int32),
        "order": ((steps * batch,), torch.int64),
        "logs": ((batch, steps), number),  # log c_t
        "ends": ((3, batch, states), number),  # the last a_t, w_0 and p(z_0 | x)
        "pairs": ((group_count(steps, batch) if states <= FEW else 0, states, states), number),
    }


def group_count(steps: int, batch: int) -> int:
    """The number of sums of expected transitions that are computed side by side."""
    return max(1, min(GROUPS, (steps - 1) * batch // GROUP))


def size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The number of bytes of an array, rounded up to a multiple of 256."""
    return -(-torch.Size(shape).numel() * dtype.itemsize // 256) * 256


def carve(memory: Tensor, arrays: Arrays) -> dict[str, Tensor]:
    """The arrays as views of the memory, one after the other."""
    found, begin = {}, 0
    for name, (shape, dtype) in arrays.items():
        length = torch.Size(shape).numel() * dtype.itemsize
        found[name] = memory[begin : begin + length].view(dtype).view(shape)
        begin += size(shape, dtype)
    return found


class Passes:
    """Forward and backward passes in fixed memory, time-major and padded."""

    priors: Tensor
    lengths: Tensor
    last: Tensor
    matrix: Tensor
    parts: Tensor
    weights: Tensor
    joint: Tensor
    scale: Tensor
    keys: Tensor
    sums: Tensor
    dots: Tensor
    norm: Tensor
    gain: Tensor
    shares: Tensor
    sorted: Tensor
    order: Tensor
    logs: Tensor
    ends: Tensor
    pairs: Tensor

    def __init__(self, tiles: Tiles, arrays: dict[str, Tensor]) -> None:
        vars(self).update(arrays)
        self.steps, self.batch, self.states = self.joint.shape
        self.device = self.joint.device
        self.grid = self.states // tiles.BN, self.batch // tiles.BM
        tiled: dict[str, Any] = {"NB": self.sums.shape[-1], "TINY": TINY}
        self.options, self.summed = tiles._asdict() | tiled, tiled | {"STEPS": max(1, SUMMED // self.sums.shape[-1])}
        self.recorded = [Recorded(self.joint.is_cuda) for _ in range(3)]

    def load(self, prior: Tensor, matrix: Tensor, table: Tensor, rows: Tensor, lengths: Tensor) -> None:
        """Copy a problem into the memory: [B, K], [K, K], [N, K], [B, T], [B]."""
        made = self.priors, self.matrix, self.weights, self.scale, self.keys, self.lengths
        sizes = *rows.shape, len(matrix), self.steps, self.states, self.batch
        given = prior, prior.stride(0), matrix, table, rows, lengths
        dense.load_kernel[(max(self.steps * self.batch, self.states),)](*given, *made, *sizes, BLOCK=BLOCK)

    def forward(self) -> None:
        self.recorded[0](self._forward)

    def backward(self) -> None:
        self.recorded[1](self._backward)

    def expect(self) -> None:
        self.recorded[2](self._expect)

    def _forward(self) -> None:
        """Compute j_t, c_t, log c_t and the last a_t, which dense.py defines."""
        self.sums.zero_()
        first = self.priors, self.weights, self.joint, self.sums, self.parts, self.batch, self.states
        ends.first_kernel[(self.batch, self.states // MULTIPLE)](*first, self.sums.shape[-1], MULTIPLE)
        for t in range(1, self.steps):
            given = self.parts[(t - 1) % 2], self.matrix, self.weights[t], self.joint[t], self.sums[t - 1]
            made, sizes = (self.sums[t], self.parts[t % 2]), (self.batch, self.states)
            dense.forward_kernel[self.grid](*given, *made, 1.0, *sizes, **self.options)
        found = self.sums, self.scale, self.lengths, self.joint, self.priors, self.norm, self.logs, self.last, self.ends
        ends.norms_kernel[(self.batch,)](*found, *self.joint.shape, BLOCK=BLOCK, **self.summed)

    def _backward(self) -> None:
        """Compute w_t and 1 / d_t, which dense.py defines."""
        self.dots.zero_()
        self.parts[self.steps % 2].zero_()
        for t in reversed(range(self.steps)):
            given = self.parts[(t + 1) % 2], self.matrix, self.weights[t], self.joint[t], self.sums[t]
            after, sizes = self.dots[min(t + 1, self.steps - 1)], (t, self.batch, self.states)
            made = self.dots[t], self.last, self.parts[t % 2]
            dense.backward_kernel[self.grid](*given, after, *made, 1.0, *sizes, **self.options)
        found, count = (self.dots, self.norm, self.gain, self.shares), self.gain.numel()
        ends.gains_kernel[(triton.cdiv(count, self.summed["STEPS"]),)](*found, self.batch, count, **self.summed)

    def _expect(self) -> None:
        """Run both passes; then compute w_0, p(z_0 | x), the steps sorted by the table row that they observe, and, for
        few states, sums of a_{t-1} w_t' / d_t."""
        self._forward()
        self._backward()
        torch.mul(self.weights[0], self.gain[0, :, None], out=self.ends[1])
        torch.mul(self.ends[1], self.priors, out=self.ends[2])
        torch.sort(self.keys.flatten(), stable=True, out=(self.sorted, self.order))
        if self.states <= FEW:
            groups, tiles, steps = len(self.pairs), self.states // MULTIPLE, (self.steps - 1) * self.batch
            count = -(-steps // (groups * INNER)) * INNER
            given = self.joint, self.weights[1:], self.shares[1:], self.pairs, 1.0, steps, count, self.states
            low = tl.bfloat16 if self.matrix.dtype is torch.bfloat16 else tl.float32
            dense.pairs_kernel[tiles, tiles, groups](*given, LOW=low, BLOCK=MULTIPLE, ROWS=INNER)

    def moves(self, matrix: Tensor) -> Tensor:
        """Expected transitions, after `expect`: the matrix times sum_t a_{t-1} w_t' / d_t, [K, K]."""
        found = self.pairs.sum(0) if self.states <= FEW else self.summed_products()
        return found.mul_(matrix) if len(matrix) == self.states else found[: len(matrix), : len(matrix)] * matrix

    def summed_products(self) -> Tensor:
        """sum_t a_{t-1} w_t' / d_t. Not part of a graph, in which cuBLAS would have a workspace of its own."""
        left, right, scale = self.joint[:-1].flatten(0, 1), self.weights[1:].flatten(0, 1), self.shares[1:].flatten()
        found, number = None, 2 * len(LEFT) * self.states  # of parts, for each step
        most = number * min(ROWS, len(left))
        fits = most <= self.matrix.numel()  # the matrix is not needed any more
        memory = self.matrix.flatten() if fits else self.matrix.new_empty(most)
        for first in range(0, len(left), ROWS):
            rows = slice(first, min(first + ROWS, len(left)))
            a, w = memory[: number * (rows.stop - first)].view(2, len(LEFT), -1, self.states)
            split(left[rows], a, LEFT)
            split(right[rows], w, RIGHT, scale[rows])
            pairs = product(a.flatten(0, 1).T, w.flatten(0, 1))
            found = pairs if found is None else found.add_(pairs)
        return self.ends.new_zeros(self.states, self.states) if found is None else found

    def smooth(self, table: Tensor, lengths: Tensor, steps: int) -> Tensor:
        """p(z_t | x), zero in the padding: [B, T, K]."""
        states, batch = table.shape[1], len(lengths)
        out = torch.empty(batch, steps, states, device=self.device)
        given = self.joint, self.weights, self.gain, self.scale, self.keys, table, lengths, out
        sizes = batch, steps, states, self.states, self.batch
        dense.smooth_kernel[(batch * steps,)](*given, *sizes, BLOCK=BLOCK, TINY=TINY)
        return out

    def visits(self, table: Tensor) -> Tensor:
        """Posteriors, summed over the steps that observe each row of the table, always in the same order: [N, K]."""
        out, states = torch.zeros_like(table), table.shape[1]
        block = 64 if states <= 1024 else 256
        grid = self.steps * self.batch, -(-states // block)
        given = self.joint, self.weights, self.gain, self.scale, table, self.sorted, self.order, out
        sizes = self.steps * self.batch, states, self.states
        dense.visits_kernel[grid](*given, *sizes, ROWS=VISITED // block, BLOCK=block, TINY=TINY)
        return out


def split(x: Tensor, out: Tensor, order: tuple[int, ...], scale: Tensor | None = None) -> None:
    """Write the parts of x, or of scale[i] x[i]: [R, K] -> [parts, rows, padded K], zero in the padding."""
    rows, padded = out.shape[1:]
    grid, scaled = (rows, -(-padded // BLOCK)), scale is not None
    dense.split_kernel[grid](x, x if scale is None else scale, out, *x.shape, padded, order, scaled, BLOCK)


def inverted(values: Tensor) -> Tensor:
    """1 / values, or zero where a value is below the smallest normal number."""
    return torch.where(values >= TINY, 1 / values, 0.0)
