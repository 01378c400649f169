"""n-grams in one sorted array, with batched lookup."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

NONE = -1  # the node of an absent n-gram


class Trie(NamedTuple):
    """The n-grams of every order, numbered order by order: nodes 0 .. V-1 are the single words.

    The n-gram that continues node c with the word x has the key c V + x. Keys are sorted, so node V + i is keys[i], the
    children of a node are contiguous, and an n-gram's prefix precedes it.
    """

    sizes: tuple[int, ...]  # n-grams of each order, V first
    keys: Tensor  # [N - V] int64

    @classmethod
    def of_words(cls, size: int) -> Trie:
        """A trie of the V single words."""
        return cls((size,), torch.empty(0, dtype=torch.int64))

    def grow(self, keys: Tensor) -> Trie:
        """Add the n-grams of the next order, with sorted keys."""
        return Trie((*self.sizes, len(keys)), torch.cat([self.keys, keys]))

    @property
    def bounds(self) -> list[int]:
        """Nodes bounds[k - 1] .. bounds[k] are the n-grams of order k."""
        return list(accumulate(self.sizes, initial=0))

    def check(self) -> None:
        """Raise ValueError unless the keys are sorted, and each n-gram continues one of the order below."""
        if self.keys.dtype != torch.int64 or not bool((self.keys.diff() > 0).all()):
            raise ValueError("the n-grams are not sorted")
        for order in range(2, len(self.sizes) + 1):
            parents, _ = self.level(order)
            low, high = self.bounds[order - 2 : order]
            if len(parents) and not low <= int(parents[0]) <= int(parents[-1]) < high:
                raise ValueError("an n-gram continues none of the order below")

    def level(self, order: int) -> tuple[Tensor, Tensor]:
        """Parents and last words of the n-grams of an order from 2 up."""
        begin, end = (bound - self.sizes[0] for bound in self.bounds[order - 1 : order + 1])
        return self.keys[begin:end] // self.sizes[0], self.keys[begin:end] % self.sizes[0]

    def find(self, parents: Tensor, words: Tensor) -> Tensor:
        """The nodes that continue the parents with the words; NONE if absent."""
        wanted = parents * self.sizes[0] + words
        place = torch.searchsorted(self.keys, wanted)
        found = self.keys[place.clamp(max=len(self.keys) - 1)] == wanted
        return torch.where(found, place + self.sizes[0], NONE)

    def walk(self, tokens: Tensor) -> list[Tensor]:
        """For each order k, the node of the last k tokens at every position of [B, T]; among the tokens, NONE may occur
        only at the front."""
        nodes = [tokens]
        for _ in self.sizes[1:]:
            before = torch.nn.functional.pad(nodes[-1][:, :-1], (1, 0), value=NONE)
            nodes.append(self.find(before, tokens))
        return nodes

    def children(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All children of the nodes [B]: the index into B, the last word, and the child node of each."""
        size = self.sizes[0]
        first, last = torch.searchsorted(self.keys, torch.stack([nodes, nodes + 1]) * size)
        owner = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), last - first)
        skipped = torch.cumsum(last - first, 0) - last
        place = torch.arange(len(owner), device=nodes.device) - skipped[owner]
        return owner, self.keys[place] % size, place + size
