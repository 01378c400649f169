"""A small cache of the positions of prefixes in a product of chain and automaton."""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from trellis.inference.constrained import Position, Product


class Prefix(NamedTuple):
    """Tokens that the automaton reads, after a context that it does not read."""

    tokens: tuple[int, ...]
    context: tuple[int, ...] = ()

    def beginnings(self) -> Iterator[Prefix]:
        """This prefix and all shorter ones, longest first: the prefix without its last tokens, then beginnings of its
        context alone."""
        yield from (Prefix(self.tokens[:n], self.context) for n in range(len(self.tokens), 0, -1))
        yield from (Prefix((), self.context[:n]) for n in range(len(self.context), -1, -1))

    def beyond(self, beginning: Prefix) -> list[tuple[int, bool]]:
        """The tokens after a beginning, last first, and whether each of them belongs to the context."""
        tokens = [*((token, True) for token in self.context), *((token, False) for token in self.tokens)]
        return tokens[len(beginning.context) + len(beginning.tokens) :][::-1]


class Prefixes:
    """The positions of at most `size` prefixes, or of those in the latest call if there are more. The least recently
    used are dropped."""

    def __init__(self, product: Product, size: int = 256, start: int | None = None) -> None:
        self.product, self.size, self.start = product, size, start
        self.kept: OrderedDict[Prefix, Position] = OrderedDict()

    def positions(self, prefixes: Sequence[Prefix]) -> Position:
        """The positions of B prefixes. Those that are not in the cache are read token by token, side by side."""
        distinct = list(dict.fromkeys(prefixes))
        known = ChainMap({Prefix(()): self.product.begin(1, self.start)}, self.kept)
        begins = [next(one for one in prefix.beginnings() if one in known) for prefix in distinct]
        found = [known[one] for one in begins]
        unread = [prefix.beyond(one) for prefix, one in zip(distinct, begins, strict=True)]
        while any(unread):
            self.extend(found, unread)
        for prefix, position in zip(distinct, found, strict=True):
            self.kept[prefix] = position
            self.kept.move_to_end(prefix)
        while len(self.kept) > max(self.size, len(distinct)):
            self.kept.popitem(last=False)
        number = {prefix: i for i, prefix in enumerate(distinct)}
        return stacked([found[number[prefix]] for prefix in prefixes])

    def extend(self, found: list[Position], unread: Sequence[list[tuple[int, bool]]]) -> None:
        """Read the next token of every position that has one."""
        for context in (True, False):
            rows = [i for i, tokens in enumerate(unread) if tokens and tokens[-1][1] == context]
            if rows:
                tokens = torch.tensor([unread[i].pop()[0] for i in rows], device=self.product.device)
                after, _ = self.product.read(stacked([found[i] for i in rows]), tokens, context)
                for n, i in enumerate(rows):
                    found[i] = after.some(slice(n, n + 1))


def stacked(positions: Sequence[Position]) -> Position:
    return Position(*(torch.cat(parts) for parts in zip(*positions, strict=True)))
