"""The automaton of a tree of patterns: the tree is converted to a position automaton (Glushkov's), and sets of its
positions are the states of a deterministic automaton."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from trellis.constraints.automaton import Automaton, explore
from trellis.constraints.syntax import END, LINE_END, START, Anchor, Choice, Sequenced, Tree
from trellis.errors import TrellisError

MOST_POSITIONS = 10_000  # of a pattern, with repetitions written out
MOST_STEPS = 3_000_000  # from position to position, while the automaton is built: about a second


class Ends(NamedTuple):
    """For a part of a pattern: the conditions under which it can be empty, and the positions where it can begin and
    end, as bits, for each condition on the place before or after them. The condition 0 always holds."""

    empty: frozenset[int]
    first: Mapping[int, int]
    last: Mapping[int, int]


class Positions:
    """The position automaton of a tree."""

    def __init__(self) -> None:
        self.atoms: list[np.ndarray] = []
        self.follow: list[int] = []
        self.closing: dict[int, int] = {}  # positions that can follow if they are a newline that ends the text
        self.steps = 0

    def add(self, tree: Tree) -> Ends:
        if isinstance(tree, np.ndarray):
            if len(self.atoms) == MOST_POSITIONS:
                raise TrellisError(
                    f"A pattern has more than {MOST_POSITIONS:,} symbols once its repetitions are expanded; shorten it."
                )
            self.atoms.append(tree)
            self.follow.append(0)
            bit = 1 << (len(self.atoms) - 1)
            return Ends(frozenset(), {0: bit}, {0: bit})
        if isinstance(tree, Anchor):
            return Ends(frozenset([tree.condition]), {}, {})
        if isinstance(tree, Choice):
            ends = [self.add(part) for part in tree.parts]
            empty = frozenset[int]().union(*(e.empty for e in ends))
            return Ends(empty, either(*(e.first for e in ends)), either(*(e.last for e in ends)))
        if isinstance(tree, Sequenced):
            return self.joined(self.add(part) for part in tree.parts)
        least, most = tree.bounds
        count, before = max(least, 1) if most is None else most, len(self.atoms)
        copies = [self.add(tree.part) for _ in range(min(count, 1))]
        if len(self.atoms) > before:  # copies of an empty part change nothing
            copies += [self.add(tree.part) for _ in range(count - 1)]
        if most is None:
            self.link(copies[-1].last, copies[-1].first)
        return self.joined(e._replace(empty=e.empty | {0}) if i >= least else e for i, e in enumerate(copies))

    def joined(self, ends: Iterable[Ends]) -> Ends:
        total = Ends(frozenset([0]), {}, {})
        for one in ends:
            self.link(total.last, one.first)
            total = Ends(
                frozenset(a | b for a in total.empty for b in one.empty),
                either(total.first, *(restricted(one.first, condition, END) for condition in total.empty)),
                either(one.last, *(restricted(total.last, condition, START) for condition in one.empty)),
            )
        return total

    def link(self, before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Let some positions follow others. Between two symbols, only one condition can hold: LINE_END."""
        for condition, places in before.items():
            for other, followers in after.items():
                if not condition | other:
                    for position in self.places(places):
                        self.follow[position] |= followers
                elif condition | other == LINE_END:
                    for position in self.places(places):
                        self.closing[position] = self.closing.get(position, 0) | followers

    def after(self, places: int) -> int:
        """The positions that can follow some positions."""
        return union(self.follow[position] for position in self.places(places))

    def closers(self, places: int) -> int:
        """The positions that can follow some positions if they are a newline that ends the text."""
        return union(after for position, after in self.closing.items() if places >> position & 1)

    def places(self, number: int) -> Iterable[int]:
        """The positions in a set. Raises if a pattern takes too many steps in total."""
        self.steps += number.bit_count()
        if self.steps > MOST_STEPS:
            raise TrellisError("A pattern is too complex once its repetitions are expanded; simplify it.")
        return bits(number)


def either(*places: Mapping[int, int]) -> dict[int, int]:
    """The union of sets of positions for each condition."""
    conditions = {condition for one in places for condition in one}
    return {condition: union(one.get(condition, 0) for one in places) for condition in conditions}


def restricted(places: Mapping[int, int], condition: int, impossible: int) -> dict[int, int]:
    """Sets of positions with one more condition, without those whose condition is impossible next to a symbol."""
    return either(*({condition | own: one} for own, one in places.items() if not (condition | own) & impossible))


def union(sets: Iterable[int]) -> int:
    total = 0
    for one in sets:
        total |= one
    return total


def bits(number: int) -> Iterable[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def automaton_of(tree: Tree, size: int, newline: int | None = None) -> Automaton:
    """The deterministic automaton of a pattern over `size` symbols, one of which may be the newline."""
    machine = Positions()
    ends = machine.add(tree)
    masks = np.stack([*machine.atoms, np.arange(size) == newline])  # [P + 1, A]
    columns, classes = np.unique(np.packbits(masks, axis=0), axis=1, return_inverse=True)
    held = np.unpackbits(columns, axis=0, count=len(masks))
    holders = [union(1 << int(p) for p in np.flatnonzero(held[:, c])) for c in range(held.shape[1])]
    is_newline, final = 1 << len(machine.atoms), union(ends.last.values())
    first = [ends.first.get(c, 0) | ends.first.get(c | START, 0) for c in (0, LINE_END)]

    def step(state: tuple[int, int, bool]) -> Iterable[tuple[int, int, bool]]:
        here, _, at_start = state
        after, closers = first if at_start else (machine.after(here), machine.closers(here))
        return ((after & holder, closers & holder if holder & is_newline else 0, False) for holder in holders)

    def accepts(state: tuple[int, int, bool]) -> bool:
        here, closed, at_start = state
        return bool(ends.empty) if at_start else bool((here | closed) & final)

    return explore((0, 0, True), step, accepts, classes.reshape(-1))
