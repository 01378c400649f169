"""Logits of words in states, q_z . w_x for the pairs that may occur: [V, k]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trellis.emissions import Partition
from trellis.kernels.pairs import set_logits
from trellis.kernels.products import times
from trellis.kernels.rows import pick

TILE = 64  # words


class ClassLogits(nn.Module):
    """By classes: the words of each class, in tiles of a few, meet the states of their class and no others."""

    words: Tensor  # [N * TILE]: the words in the order of the tiles, some of them twice to fill a tile
    slots: Tensor  # [V]: the place of each word among them
    tile_class: Tensor  # [N]

    def __init__(self, word_class: Tensor) -> None:
        super().__init__()
        order = word_class.argsort(stable=True)
        sizes = word_class.bincount()
        tiles = (sizes + TILE - 1) // TILE
        first_tile, first_word = tiles.cumsum(0) - tiles, sizes.cumsum(0) - sizes
        sorted_class = word_class[order]
        slots = first_tile[sorted_class] * TILE + torch.arange(len(order)) - first_word[sorted_class]
        words = torch.zeros(int(tiles.sum()) * TILE, dtype=torch.int64)
        words[slots] = order
        place = torch.empty_like(order)
        place[order] = slots
        self.register_buffer("words", words, persistent=False)
        self.register_buffer("slots", place, persistent=False)
        self.register_buffer("tile_class", torch.arange(len(tiles)).repeat_interleave(tiles), persistent=False)

    def forward(self, states: Tensor, words: Tensor, partition: Partition, dtype: torch.dtype) -> Tensor:
        """States [K, d], words [V, d] -> [V, k]."""
        tiles = pick(words, self.words, self.slots).view(-1, TILE, words.shape[1])
        logits = set_logits(tiles, partition.groups(self.tile_class).arrange(states), None, self.tile_class, dtype)
        return pick(logits.flatten(0, 1), self.slots)


def every_logit(states: Tensor, words: Tensor, support: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Of all pairs, then those of the support [V, k]: for models small enough that [V, K] fits in memory."""
    low = None if dtype is words.dtype else states.detach().to(dtype).T
    logits = times(words, states.to(words.dtype).T, low)
    return logits if support is None else logits.gather(1, support)
