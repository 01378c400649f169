"""A small cache of the positions of prefixes in a product of chain and automaton."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from trellis.inference.constrained import Position, Product


class Prefix(NamedTuple):
    """Tokens that the automaton reads, after a context that it does not read."""

    tokens: tuple[int, ...]
    context: tuple[int, ...] = ()

    def parents(self) -> Iterator[Prefix]:
        """All shorter prefixes, longest first: the prefix without its last tokens, then beginnings of its context
        alone."""
        for n in reversed(range(len(self.tokens))):
            yield Prefix(self.tokens[:n], self.context)
        for n in reversed(range(len(self.context))):
            yield Prefix((), self.context[:n])


class Prefixes:
    """The positions of at most `size` prefixes; the least recently used are dropped."""

    def __init__(self, product: Product, size: int = 256, start: int | None = None) -> None:
        self.product, self.size, self.start = product, size, start
        self.kept: OrderedDict[Prefix, Position] = OrderedDict()

    def positions(self, prefixes: Sequence[Prefix]) -> Position:
        """The positions of B prefixes. Those that are not in the cache are read token by token, side by side."""
        distinct = dict.fromkeys(prefixes)
        found = {prefix: self.kept[prefix] for prefix in distinct if prefix in self.kept}
        found[Prefix(())] = self.product.begin(1, self.start)
        chains = [self.to_read(prefix, found) for prefix in distinct]
        while level := [chain.pop() for chain in chains if chain]:
            self.extend(list(dict.fromkeys(level)), found)
        for prefix in distinct:
            self.kept[prefix] = found[prefix]
            self.kept.move_to_end(prefix)
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return stacked([found[prefix] for prefix in prefixes])

    def to_read(self, prefix: Prefix, found: dict[Prefix, Position]) -> list[Prefix]:
        """The prefixes to compute, longest first, up to the first prefix whose position is known. That position is
        added to `found`."""
        missing = list[Prefix]()
        for one in chain([prefix], prefix.parents()):
            if one in self.kept:
                found.setdefault(one, self.kept[one])
            if one in found:
                break
            missing.append(one)
        return missing

    def extend(self, level: list[Prefix], found: dict[Prefix, Position]) -> None:
        """Compute the positions of the prefixes in `level` from those of their parents, and add them to `found`."""
        for in_context in (True, False):
            chosen = [one for one in level if one not in found and bool(one.tokens) != in_context]
            if chosen:
                ids = [(one.context if in_context else one.tokens)[-1] for one in chosen]
                before = stacked([found[next(one.parents())] for one in chosen])
                after, _ = self.product.read(before, torch.tensor(ids, device=self.product.device), in_context)
                found |= {one: after.some(slice(i, i + 1)) for i, one in enumerate(chosen)}


def stacked(positions: Sequence[Position]) -> Position:
    return Position(*(torch.cat(parts) for parts in zip(*positions, strict=True)))
