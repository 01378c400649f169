"""Logits of words in states, q_z . w_x for the pairs that may occur: [V, k]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trellis.emissions import Partition
from trellis.kernels.lse.tiled import product
from trellis.kernels.rows import pick, take

TILE = 64  # words


class ClassLogits(nn.Module):
    """By classes: the words of each class, in tiles of a few, meet the states of their class and no others."""

    words: Tensor  # [N * TILE]: the words in the order of the tiles, some of them twice to fill a tile
    slots: Tensor  # [V]: the place of each word among them
    tile_class: Tensor  # [N]
    filling: Tensor  # [N * TILE] bool

    def __init__(self, word_class: Tensor) -> None:
        super().__init__()
        order = word_class.argsort(stable=True)
        sizes = word_class.bincount()
        tiles = (sizes + TILE - 1) // TILE
        first_tile, first_word = tiles.cumsum(0) - tiles, sizes.cumsum(0) - sizes
        sorted_class = word_class[order]
        slots = first_tile[sorted_class] * TILE + torch.arange(len(order)) - first_word[sorted_class]
        words = torch.zeros(int(tiles.sum()) * TILE, dtype=torch.int64)
        filling = torch.ones_like(words, dtype=torch.bool)
        words[slots], filling[slots] = order, False
        place = torch.empty_like(order)
        place[order] = slots
        self.register_buffer("words", words, persistent=False)
        self.register_buffer("slots", place, persistent=False)
        self.register_buffer("tile_class", torch.arange(len(tiles)).repeat_interleave(tiles), persistent=False)
        self.register_buffer("filling", filling, persistent=False)

    def forward(self, states: Tensor, words: Tensor, partition: Partition, dtype: torch.dtype) -> Tensor:
        """States [K, d], words [V, d] -> [V, k]."""
        live = take(partition.groups(self.tile_class).arrange(states.to(dtype)), self.tile_class)  # [N, k, d]
        tiles = pick(words, self.words, self.slots).view(-1, TILE, words.shape[1])
        logits = TileProduct.apply(tiles, live, dtype).flatten(0, 1)
        return Unfilled.apply(logits, self.slots, self.words, self.filling)


class TileProduct(torch.autograd.Function):
    """X Y' for a batch of matrices, in a lower precision where asked for: [N, p, d], [N, k, d] -> [N, p, k]."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        x, y = left.to(dtype), right.to(dtype)
        ctx.save_for_backward(x, y)
        ctx.dtypes = left.dtype, right.dtype
        return product(x, y.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, y = ctx.saved_tensors
        grad = grads[0].to(x.dtype)
        return product(grad, y).to(ctx.dtypes[0]), torch.bmm(grad.mT, x).to(ctx.dtypes[1]), None


class Unfilled(torch.autograd.Function):
    """The rows of the words [V, k] out of those of the tiles; what only fills a tile has no gradient."""

    @staticmethod
    def forward(ctx: Any, tiles: Tensor, slots: Tensor, words: Tensor, filling: Tensor) -> Tensor:
        ctx.save_for_backward(words, filling)
        return tiles[slots]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        words, filling = ctx.saved_tensors
        return grads[0][words].masked_fill(filling.unsqueeze(-1), 0.0), None, None, None


def every_logit(states: Tensor, words: Tensor, support: Tensor | None) -> Tensor:
    """Of all pairs, then those of the support [V, k]: for models small enough that [V, K] fits in memory."""
    logits = words @ states.T
    return logits if support is None else logits.gather(1, support)
