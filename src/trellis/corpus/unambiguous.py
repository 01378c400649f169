"""Check that a repeated part of a regular expression matches any text in at most one way: each character of the text
must determine the part of the pattern that matches it (Brueggemann-Klein and Wood 1998, "One-unambiguous regular
languages")."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, reduce
from itertools import chain
from operator import or_
from typing import Any, NamedTuple

EVERY = (1 << 0x110000) - 1  # a set of characters is an integer, with one bit per character
CATEGORIES = {"CATEGORY_DIGIT": r"\d+", "CATEGORY_SPACE": r"\s+", "CATEGORY_WORD": r"\w+"}
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
MOST = 100  # positions in a pattern


class NotCheckedError(Exception):
    """A pattern cannot be checked: it has too many parts, or a part of an unknown kind."""


def is_unambiguous(part: Any) -> bool:
    """Whether a part of a pattern, parsed by `re` without flags, matches every text in at most one way."""
    positions = Positions()
    try:
        return positions.disjoint(positions.add([part]).first) and all(map(positions.disjoint, positions.following))
    except NotCheckedError:
        return False


class Ends(NamedTuple):
    """The positions at which a match of a part may begin and end, and whether the match may be empty."""

    first: list[int]
    last: list[int]
    empty: bool


class Positions:
    """The positions of a pattern, each of which matches one character: the characters, and the positions that may
    follow."""

    def __init__(self) -> None:
        self.characters, self.following = list[int](), list[list[int]]()

    def disjoint(self, positions: list[int]) -> bool:
        seen = 0
        for position in positions:
            if seen & self.characters[position]:
                return False
            seen |= self.characters[position]
        return True

    def add(self, tree: Any) -> Ends:
        """Add the parts of a parsed pattern, one after another."""
        first, last, empty = list[int](), list[int](), True
        for name, value in tree:
            part = self.add_part(name.name, value)
            self.follow(last, part.first)
            first += part.first if empty else []
            last = part.last + (last if part.empty else [])
            empty &= part.empty
        return Ends(first, last, empty)

    def add_part(self, name: str, value: Any) -> Ends:
        if name in REPEATS:
            least, most, body = value
            found = self.add(body)
            if least > 1 and found.empty:  # which of the iterations are empty is a choice
                raise NotCheckedError
            if most > 1:
                self.follow(found.last, found.first)
            return found._replace(empty=found.empty or least == 0)
        if name == "BRANCH":
            return union([self.add(branch) for branch in value[1]])
        if name == "SUBPATTERN" and not any(value[1:3]):  # flags
            return self.add(value[3])
        if name == "AT":
            return Ends([], [], True)
        return self.add_position(characters_of(name, value))

    def add_position(self, characters: int) -> Ends:
        if len(self.characters) == MOST:
            raise NotCheckedError
        self.characters.append(characters)
        self.following.append([])
        return Ends([len(self.characters) - 1], [len(self.characters) - 1], False)

    def follow(self, before: list[int], after: list[int]) -> None:
        for position in before:
            self.following[position].extend(after)


def union(parts: list[Ends]) -> Ends:
    first, last, empty = zip(*parts, strict=True)
    return Ends(list(chain(*first)), list(chain(*last)), any(empty))


def characters_of(name: str, value: Any) -> int:
    """The characters that match a part of a pattern, if this part is one character long."""
    if name not in CHARACTERS:
        raise NotCheckedError
    return CHARACTERS[name](value)


def of_items(items: list[Any]) -> int:
    """The characters that a set such as [a-z] matches."""
    negated = items[0][0].name == "NEGATE"
    found = reduce(or_, (characters_of(kind.name, value) for kind, value in items[negated:]))
    return EVERY ^ found if negated else found


def of_category(kind: Any) -> int:
    """The characters that an escape such as \\d or \\D matches."""
    known = category(kind.name.replace("_NOT_", "_"))
    return EVERY ^ known if "_NOT_" in kind.name else known


@cache
def category(name: str) -> int:
    found = re.finditer(CATEGORIES[name], "".join(map(chr, range(0x110000))))
    return sum((1 << one.end()) - (1 << one.start()) for one in found)


CHARACTERS: dict[str, Callable[[Any], int]] = {
    "ANY": lambda _: EVERY,
    "LITERAL": lambda code: 1 << code,
    "NOT_LITERAL": lambda code: EVERY ^ 1 << code,
    "RANGE": lambda bounds: (1 << bounds[1] + 1) - (1 << bounds[0]),
    "CATEGORY": of_category,
    "IN": of_items,
}
