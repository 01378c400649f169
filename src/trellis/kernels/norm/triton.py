"""LayerNorm(x + y) on a GPU in one pass; the backward pass also accumulates the gradients of scale and shift."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.kernels.rows import sum_rows

ENTRIES = 4096  # entries per tile of rows
BACKWARD_ENTRIES = 8192  # the same in the backward pass
PROGRAMS = 528  # programs of the backward pass: four per multiprocessor of a large GPU
EPSILON = 1e-5  # torch's default


def fits(dim: int) -> bool:
    """Whether a row fits in registers."""
    return dim <= ENTRIES


@triton.jit
def standardised(x, y, place, inside, D, EPSILON: tl.constexpr):
    """(s - mean s) / sd s and 1 / sd s for each row s of x + y."""
    s = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    s += tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    s = tl.where(inside, s - (tl.sum(s, 1) / D)[:, None], 0.0)
    rate = tl.rsqrt(tl.sum(s * s, 1) / D + EPSILON)
    return s * rate[:, None], rate


@triton.jit
def forward_kernel(
    x, y, scale, shift, out, N, D, ROWS: tl.constexpr, WIDTH: tl.constexpr, EPSILON: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    place, inside = rows[:, None] * D + columns[None, :], (rows < N)[:, None] & (columns < D)[None, :]
    z, _ = standardised(x, y, place, inside, D, EPSILON)
    factor = tl.load(scale + columns, mask=columns < D, other=0.0)
    offset = tl.load(shift + columns, mask=columns < D, other=0.0)
    tl.store(out + place, z * factor[None, :] + offset[None, :], mask=inside)


@triton.jit
def backward_kernel(
    x, y, scale, grads, d_sum, d_factors, N, D,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, WIDTH)
    factor = tl.load(scale + columns, mask=columns < D, other=0.0)
    of_scale, of_shift = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    first = tl.program_id(0) * ROWS
    while first < N:
        rows = first + tl.arange(0, ROWS)
        place, inside = rows[:, None] * D + columns[None, :], (rows < N)[:, None] & (columns < D)[None, :]
        z, rate = standardised(x, y, place, inside, D, EPSILON)
        grad = tl.load(grads + place, mask=inside, other=0.0).to(tl.float32)
        of_scale += tl.sum(grad * z, 0)
        of_shift += tl.sum(grad, 0)
        grad = grad * factor[None, :]
        centred = grad - (tl.sum(grad, 1) / D)[:, None] - z * (tl.sum(grad * z, 1) / D)[:, None]
        tl.store(d_sum + place, centred * rate[:, None], mask=inside)
        first += tl.num_programs(0) * ROWS
    tl.store(d_factors + tl.program_id(0) * 2 * D + columns, of_scale, mask=columns < D)
    tl.store(d_factors + (tl.program_id(0) * 2 + 1) * D + columns, of_shift, mask=columns < D)


class AddNorm(torch.autograd.Function):
    """LayerNorm(x + y) * scale + shift: [n, d], [n, d], [d], [d] -> [n, d]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        x, y, scale, shift = (given.contiguous() for given in (x, y, scale, shift))
        out, sizes = torch.empty_like(x), tile(x)
        forward_kernel[(triton.cdiv(len(x), sizes["ROWS"]),)](x, y, scale, shift, out, *x.shape, **sizes)
        ctx.save_for_backward(x, y, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, y, scale = ctx.saved_tensors
        d_sum, sizes = torch.empty_like(x), tile(x, BACKWARD_ENTRIES, 4)
        programs = min(PROGRAMS, triton.cdiv(len(x), sizes["ROWS"]))
        d_factors = torch.empty(programs, 2, x.shape[1], dtype=torch.float32, device=x.device)
        backward_kernel[(programs,)](x, y, scale, grads[0].contiguous(), d_sum, d_factors, *x.shape, **sizes)
        d_scale, d_shift = sum_rows(d_factors.flatten(1)).view(2, -1).to(scale.dtype)
        return d_sum, d_sum, d_scale, d_shift


def tile(x: Tensor, entries: int = ENTRIES, warps: int = 8) -> dict[str, Any]:
    """The tiling of rows [n, d]."""
    width = triton.next_power_of_2(x.shape[1])
    return {"ROWS": max(1, entries // width), "WIDTH": width, "EPSILON": EPSILON, "num_warps": warps}
