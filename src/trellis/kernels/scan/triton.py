"""Forward and adjoint recursions over blocks [B, T-1, k, k] on a GPU: one program per sequence scans over time.

The recursions, a_t and w_t are those of engines/reference.py. Blocks are stored as probabilities P, or as logits x and
log normalisers n of their rows: P_ij = exp(x_ij - n_i). The adjoint writes dL/dP_ij = a_{t-1}(i) w_t(j) for
probabilities, or dL/dx_ij = P_ij a_{t-1}(i) w_t(j) and dL/dn_i for logits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1 << 15  # block entries in registers at a time
NORMED = 1 << 12  # entries that a program reads to compute normalisers


@triton.jit
def block_of(blocks, log_norm, index, rows, columns, K: tl.constexpr, LOGITS: tl.constexpr):
    """The rows of block `index` as probabilities: [rows, columns]."""
    inside = (rows < K)[:, None] & (columns < K)[None, :]
    x = tl.load(blocks + (index * K + rows[:, None]) * K + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if LOGITS:
        norm = tl.load(log_norm + index * K + rows, mask=rows < K, other=0.0)
        x = tl.where(inside, tl.exp(x - norm[:, None]), 0.0)
    return x


@triton.jit
def forward_kernel(
    prior, blocks, log_norm, weights, lengths, alphas, norms, T,
    K: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LOGITS: tl.constexpr,
    TINY: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < K
    length = tl.load(lengths + b)
    t = 0
    while t < T:
        if t < length:
            if t == 0:
                predicted = tl.load(prior + b * K + columns, mask=inside, other=0.0)
            else:
                predicted = tl.zeros((WIDTH,), tl.float32)
                for first in range(0, K, ROWS):
                    rows = first + tl.arange(0, ROWS)
                    a = tl.load(alphas + (b * T + t - 1) * K + rows, mask=rows < K, other=0.0)
                    p = block_of(blocks, log_norm, b * (T - 1) + t - 1, rows, columns, K, LOGITS)
                    predicted += tl.sum(a[:, None] * p, 0)
            weight = tl.load(weights + (b * T + t) * K + columns, mask=inside, other=-float("inf"))
            top = tl.max(weight, 0)
            top = tl.where(top == -float("inf"), 0.0, top)
            joint = predicted * tl.exp(weight - top)
            norm = tl.sum(joint, 0)
            possible = norm >= TINY
            a = tl.where(possible, joint / tl.where(possible, norm, 1.0), 0.0)
            tl.store(alphas + (b * T + t) * K + columns, a, mask=inside)
            tl.store(norms + b * T + t, tl.where(possible, tl.log(tl.where(possible, norm, 1.0)) + top, -float("inf")))
            tl.debug_barrier()
        t += 1


@triton.jit
def adjoint_kernel(
    blocks, log_norm, weights, lengths, alphas, norms, grads, messages, d_prior, d_weights, d_blocks, d_log_norm, T,
    K: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LOGITS: tl.constexpr,
    PAIRS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < K
    length = tl.load(lengths + b)
    t = T - 1
    while t >= 0:
        if t < length:
            message = tl.load(messages + b * K + columns, mask=inside, other=0.0)
            a = tl.load(alphas + (b * T + t) * K + columns, mask=inside, other=0.0)
            future = tl.load(grads + b * T + t) + message - tl.sum(message * a, 0)
            tl.store(d_weights + (b * T + t) * K + columns, a * future, mask=inside)
            weight = tl.load(weights + (b * T + t) * K + columns, mask=inside, other=-float("inf"))
            norm = tl.load(norms + b * T + t)
            possible = norm > -float("inf")
            gain = tl.where(possible, tl.exp(weight - tl.where(possible, norm, 0.0)), 0.0)
            pull = tl.where(inside, gain * future, 0.0)
            if t == 0:
                tl.store(d_prior + b * K + columns, pull, mask=inside)
            else:
                tl.debug_barrier()
                for first in range(0, K, ROWS):
                    rows = first + tl.arange(0, ROWS)
                    index = b * (T - 1) + t - 1
                    p = block_of(blocks, log_norm, index, rows, columns, K, LOGITS)
                    before = tl.load(alphas + (b * T + t - 1) * K + rows, mask=rows < K, other=0.0)
                    pulled = tl.sum(p * pull[None, :], 1)
                    tl.store(messages + b * K + rows, pulled, mask=rows < K)
                    if PAIRS:
                        pair = before[:, None] * pull[None, :]
                        if SPLIT:  # minus the gradient through the normaliser, a function of the same logits
                            total = tl.sum(p, 1)
                            pair -= (before * pulled / tl.where(total > 0.0, total, 1.0))[:, None]
                        if LOGITS:
                            pair = pair * p
                            tl.store(d_log_norm + index * K + rows, -before * pulled, mask=rows < K)
                        place = d_blocks + (index * K + rows[:, None]) * K + columns[None, :]
                        tl.store(place, pair, mask=(rows < K)[:, None] & inside[None, :])
                tl.debug_barrier()
        elif PAIRS and t > 0:
            for first in range(0, K, ROWS):
                rows = first + tl.arange(0, ROWS)
                index = b * (T - 1) + t - 1
                place = d_blocks + (index * K + rows[:, None]) * K + columns[None, :]
                tl.store(place, tl.zeros((ROWS, WIDTH), tl.float32), mask=(rows < K)[:, None] & inside[None, :])
                if LOGITS:
                    tl.store(d_log_norm + index * K + rows, tl.zeros((ROWS,), tl.float32), mask=rows < K)
        t -= 1


@triton.jit
def norm_kernel(logits, out, N, K: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (rows < N)[:, None] & (columns < K)[None, :]
    x = tl.load(logits + rows[:, None] * K + columns[None, :], mask=inside, other=-float("inf"))
    top = tl.max(x, 1)
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.where(rows < N, tl.sum(tl.exp(x - top[:, None]), 1), 1.0)
    tl.store(out + rows, top + tl.log(total), mask=rows < N)


def row_norms(logits: Tensor) -> Tensor:
    """logsumexp over the last dimension: [..., k] -> [...]."""
    logits, out = logits.contiguous(), logits.new_empty(logits.shape[:-1])
    width = triton.next_power_of_2(logits.shape[-1])
    rows = max(1, NORMED // width)
    if out.numel():
        grid = (triton.cdiv(out.numel(), rows),)
        norm_kernel[grid](logits, out, out.numel(), K=logits.shape[-1], WIDTH=width, ROWS=rows)
    return out


def shape_of(states: int) -> dict[str, int]:
    """The tiling of a k x k block into whole rows."""
    width = max(16, triton.next_power_of_2(states))
    rows = max(16, min(width, TILE // width))
    warps = 1 if width * rows <= 1 << 10 else 8 if width * rows <= 1 << 14 else 16
    return {"K": states, "WIDTH": width, "ROWS": rows, "num_warps": warps}


class Run:
    """The forward and backward recursions for one problem on a GPU, in float32."""

    def __init__(
        self, prior: Tensor, blocks: Tensor, log_norm: Tensor | None, weights: Tensor, lengths: Tensor
    ) -> None:
        self.blocks, self.logits = blocks.contiguous(), log_norm is not None
        self.log_norm = self.blocks if log_norm is None else log_norm.contiguous()
        self.prior, self.weights, self.lengths = prior.contiguous(), weights.contiguous(), lengths.contiguous()
        self.sizes = {"T": weights.shape[1], "LOGITS": self.logits, **shape_of(weights.shape[2])}

    def forward(self) -> tuple[Tensor, Tensor]:
        """log p(x_t | x_<t) [B, T] and p(z_t | x_<=t) [B, T, k], zero in the padding."""
        alphas = torch.zeros_like(self.weights)
        norms = alphas.new_zeros(alphas.shape[:2])
        given = self.prior, self.blocks, self.log_norm, self.weights, self.lengths
        forward_kernel[(len(alphas),)](*given, alphas, norms, **self.sizes, TINY=torch.finfo(alphas.dtype).tiny)
        return norms, alphas

    def adjoint(
        self, norms: Tensor, alphas: Tensor, grads: Tensor, last: Tensor | None, pairs: bool, split: bool = False
    ) -> list[Tensor]:
        """The gradients dL/dprior [B, k] and dL/dlog o [B, T, k]; if `pairs` is true, also dL/dblocks and, if blocks
        are logits, dL/dlog_norm. If `split` is true, log_norm is logsumexp(blocks) minus a term that does not depend on
        them, and dL/dblocks includes the gradient through log_norm."""
        messages = torch.zeros_like(self.prior) if last is None else last.clone(memory_format=torch.contiguous_format)
        d_prior, d_weights = messages.clone(), torch.zeros_like(alphas)
        d_blocks = torch.empty_like(self.blocks) if pairs else self.blocks.new_empty(0)
        d_log_norm = torch.empty_like(self.log_norm) if pairs and self.logits else self.blocks.new_empty(0)
        given = self.blocks, self.log_norm, self.weights, self.lengths, alphas, norms, grads.contiguous(), messages
        made, choices = (d_prior, d_weights, d_blocks, d_log_norm), {"PAIRS": pairs, "SPLIT": split}
        adjoint_kernel[(len(alphas),)](*given, *made, **self.sizes, **choices)
        return list(made)
