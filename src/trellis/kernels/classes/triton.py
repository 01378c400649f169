"""Softmax over the words of each class on a GPU. A program reads the logits of a class twice: first to compute the
normalisers, then to write the results."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = {"WORDS": 64, "COLUMNS": 32, "num_warps": 4}


@triton.jit
def some_words(words, first, last, columns, K, WORDS: tl.constexpr):
    """The offsets of the next few words of a class, and their mask: [WORDS, columns]."""
    place = first + tl.arange(0, WORDS)
    row = tl.load(words + place, mask=place < last, other=0)
    return row[:, None] * K + columns[None, :], (place < last)[:, None] & (columns < K)[None, :]


@triton.jit
def forward_kernel(logits, words, begins, out, K, WORDS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin, last = tl.load(begins + tl.program_id(0)), tl.load(begins + tl.program_id(0) + 1)
    top = tl.full((COLUMNS,), -float("inf"), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    first = begin
    while first < last:
        place, inside = some_words(words, first, last, columns, K, WORDS)
        x = tl.load(logits + place, mask=inside, other=-float("inf"))
        higher = tl.maximum(top, tl.max(x, 0))
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(x - shift[None, :]), 0)
        top = higher
        first += WORDS
    norm = tl.where(total > 0.0, top + tl.log(tl.where(total > 0.0, total, 1.0)), 0.0)
    first = begin
    while first < last:
        place, inside = some_words(words, first, last, columns, K, WORDS)
        tl.store(out + place, tl.load(logits + place, mask=inside) - norm[None, :], mask=inside)
        first += WORDS


@triton.jit
def backward_kernel(grads, out, words, begins, d_logits, K, WORDS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin, last = tl.load(begins + tl.program_id(0)), tl.load(begins + tl.program_id(0) + 1)
    total = tl.zeros((COLUMNS,), tl.float32)
    first = begin
    while first < last:
        place, inside = some_words(words, first, last, columns, K, WORDS)
        total += tl.sum(tl.load(grads + place, mask=inside, other=0.0), 0)
        first += WORDS
    first = begin
    while first < last:
        place, inside = some_words(words, first, last, columns, K, WORDS)
        grad, log_prob = tl.load(grads + place, mask=inside), tl.load(out + place, mask=inside)
        tl.store(d_logits + place, grad - tl.exp(log_prob) * total[None, :], mask=inside)
        first += WORDS


class ClassLogSoftmax(torch.autograd.Function):
    """The log-softmax of each column of logits [V, k] over the words of each class.
    Class c has words[begins[c] : begins[c + 1]]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, words: Tensor, begins: Tensor) -> Tensor:
        logits = logits.contiguous()
        out = torch.empty_like(logits)
        forward_kernel[grid(begins, logits)](logits, words, begins, out, logits.shape[1], **TILE)
        ctx.save_for_backward(out, words, begins)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        out, words, begins = ctx.saved_tensors
        d_logits = torch.empty_like(out)
        backward_kernel[grid(begins, out)](grads[0].contiguous(), out, words, begins, d_logits, out.shape[1], **TILE)
        return d_logits, None, None


def grid(begins: Tensor, table: Tensor) -> tuple[int, int]:
    return len(begins) - 1, triton.cdiv(table.shape[1], TILE["COLUMNS"])
