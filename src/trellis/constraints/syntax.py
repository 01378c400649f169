"""The syntax of patterns over any symbols: a lexer turns a pattern into operators and atoms (sets of symbols), and a
parser turns these into a tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trellis.errors import TrellisError

START, LINE_END, END = 1, 2, 4  # conditions: nothing before, at most a newline after, nothing after; they are added


class Bounds(NamedTuple):
    """How often something is repeated."""

    least: int
    most: int | None  # None: no limit


class Anchor(NamedTuple):
    """No symbols, at a place of the text that satisfies a condition."""

    condition: int


class Sequenced(NamedTuple):
    """Patterns one after another."""

    parts: Sequence[Tree]


class Choice(NamedTuple):
    """One of several patterns."""

    parts: Sequence[Tree]


class Repeat(NamedTuple):
    """A pattern several times."""

    part: Tree
    bounds: Bounds


Tree = Anchor | Sequenced | Choice | Repeat | np.ndarray  # an array [A] bool is a set of symbols
Item = str | Bounds | Tree
REPEATS = {"*": Bounds(0, None), "+": Bounds(1, None), "?": Bounds(0, 1)}
ANCHORS = {"^": Anchor(START), r"\A": Anchor(START), "$": Anchor(LINE_END), r"\Z": Anchor(END)}
_BOUNDS = r"(?P<bounds>\{(?P<least>\d{0,9})(?P<range>,(?P<most>\d{0,9}))?\})"
_LAZY = r"(?:\?|(?!\+))"  # a lazy repetition matches the same texts; a possessive one does not
_ESCAPED = r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|0[0-7]{0,2}|[1-3][0-7]{2}|[^bBAZz0-9]"
CHARACTERS = re.compile(
    rf"(?P<comment>\(\?\#(?:\\.|[^)\\])*\))|(?P<open>\((?:\?:|(?!\?)))|(?P<operator>[)|])"
    rf"|(?:(?P<repeat>[*+?])|{_BOUNDS}){_LAZY}|(?P<anchor>[\^$]|\\[AZ])"
    rf"|(?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\(?:{_ESCAPED})|[^\\\[(){{|*+?])",
    re.DOTALL,
)
TOKENS = re.compile(
    rf"\s+|(?P<open>\()|(?P<operator>[)|])|(?P<repeat>[*+?])|{_BOUNDS}"
    r"|(?P<set>\[(?P<negated>\^?)(?P<members>(?:\\.|[^\]\\])*)\])|(?P<atom>(?:\\.|[^\s()|*+?{}\[\]\\])+)",
    re.DOTALL,
)
GAP = "___"
GAPS = re.compile(rf"{GAP}{_BOUNDS}?")
REASONS = {  # the beginning of a part that cannot be read, and why; the first that matches
    r"\(\?<?[=!]": "lookahead and lookbehind are not supported; combine several constraints instead",
    r"\(\?P?<": "named groups are not supported; write ( )",
    r"\\[1-9]|\(\?P=": "backreferences are not supported; list the alternatives",
    r"\(\?>": "atomic groups are not supported",
    r"\(\?\(": "conditional groups are not supported; list the alternatives",
    r"\(\?#": "the comment is not closed",
    r"\(\?[a-zA-Z-]": "flags are not supported; list the alternatives, such as [Aa]",
    r"\(\?": "no such group exists; write ( ) or (?: )",
    r"\\[bB]": "word boundaries are not supported; write the characters next to the word",
    r"\\z": r"write \Z for the end of the text",
    r"([*+?]|\{\d*,?\d*\})\+": "possessive repetitions are not supported",
    r"\[": r"the set is not closed; write ] at its end, or \[ for a bracket",
    r"\]": r"no set is open; write \] for a bracket",
    r"\{": r"this is not a repetition; write {m}, {m,} or {m,n}, or \{ for a brace",
    r"\}": r"no repetition is open; write \} for a brace",
    r"\\\Z": "the backslash is not followed by a character",
}


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def bounds_of(match: re.Match[str], pattern: str) -> Bounds:
    least = int(match["least"] or 0)
    most = least if not match["range"] else int(match["most"]) if match["most"] else None
    if (not match["least"] and not match["most"]) or (most is not None and most < least):
        raise TrellisError(
            f"The repetition {match['bounds']} in {pattern!r} is invalid; write {{m}}, {{m,}} or {{m,n}}."
        )
    return Bounds(least, most)


def lexed(text: str, grammar: re.Pattern[str], atom: Callable[[re.Match[str]], Tree]) -> list[Item]:
    """Split a pattern into operators "(", ")" and "|", repetitions, and atoms."""
    items, position = list[Item](), 0
    while position < len(text):
        match = grammar.match(text, position)
        if match is None:
            here = text[position:]
            reason = next(reason for part, reason in REASONS.items() if re.match(part, here))
            raise TrellisError(f"Cannot read the pattern {text!r} from {here[:10]!r} on: {reason}.")
        position, found = match.end(), match.groupdict()
        if found["open"]:
            items.append("(")
        elif found["operator"]:
            items.append(found["operator"])
        elif found["repeat"]:
            items.append(REPEATS[found["repeat"]])
        elif found["bounds"]:
            items.append(bounds_of(match, text))
        elif found.get("anchor"):
            items.append(ANCHORS[found["anchor"]])
        elif found["atom"] or found.get("set"):
            items.append(atom(match))
    return items


def parsed(items: list[Item], pattern: str) -> Tree:
    """Parse the items of a pattern into a tree."""
    rest = items[::-1]

    def choice() -> Tree:
        parts = [sequence()]
        while rest and is_operator(rest[-1], "|"):
            rest.pop()
            parts.append(sequence())
        return parts[0] if len(parts) == 1 else Choice(parts)

    def sequence() -> Tree:
        parts = list[Tree]()
        while rest and not is_operator(rest[-1], "|") and not is_operator(rest[-1], ")"):
            item = rest.pop()
            if isinstance(item, Bounds):
                parts.append(Repeat(repeatable(parts, pattern), item))
            elif isinstance(item, str):
                parts.append(choice())
                if not rest:
                    raise TrellisError(f"A parenthesis of the pattern {pattern!r} is not closed.")
                rest.pop()
            else:
                parts.append(item)
        return Sequenced(parts)

    tree = choice()
    if rest:
        raise TrellisError(f"The pattern {pattern!r} closes a parenthesis that it does not open.")
    return tree


def repeatable(parts: list[Tree], pattern: str) -> Tree:
    """Remove and return the last part, which a repetition follows."""
    if not parts or isinstance(parts[-1], Anchor):
        raise TrellisError(f"The pattern {pattern!r} repeats nothing; put something before the repetition.")
    if isinstance(parts[-1], Repeat):
        raise TrellisError(f"The pattern {pattern!r} repeats a repetition; put the inner one in parentheses.")
    return parts.pop()


def is_operator(item: Item, operator: str) -> bool:
    return isinstance(item, str) and item == operator
