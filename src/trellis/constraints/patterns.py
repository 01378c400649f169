"""Regular expressions over any symbols: tokens, or the characters of a text.

A lexer turns a pattern into operators and atoms (sets of symbols). A parser turns these into a tree. The tree is
converted to a position automaton (Glushkov's), and sets of its positions are the states of a deterministic
automaton."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from trellis.constraints.alphabet import Alphabet
from trellis.constraints.automaton import Automaton, check_size, explore, minimised
from trellis.errors import TrellisError

MOST_POSITIONS = 10_000  # of a pattern, with repetitions written out
MOST_STEPS = 3_000_000  # from position to position, while the automaton is built: about a second
SPACE = " "


class Bounds(NamedTuple):
    """How often something is repeated."""

    least: int
    most: int | None  # None: no limit


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


Tree = Sequenced | Choice | Repeat | np.ndarray  # an array [A] bool is a set of symbols
Item = str | Bounds | Tree
REPEATS = {"*": Bounds(0, None), "+": Bounds(1, None), "?": Bounds(0, 1)}
_BOUNDS = r"(?P<bounds>\{(?P<least>\d{0,9})(?P<range>,(?P<most>\d{0,9}))?\})"
_CHARACTERS = re.compile(
    rf"(?P<open>\((?:\?:|(?!\?)))|(?P<operator>[)|])|(?P<repeat>[*+?])|{_BOUNDS}"
    r"|(?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^bBAZ\d])|[^\\\[\](){}|*+?])",
    re.DOTALL,
)
_TOKENS = re.compile(
    rf"\s+|(?P<open>\()|(?P<operator>[)|])|(?P<repeat>[*+?])|{_BOUNDS}"
    r"|(?P<set>\[(?P<negated>\^?)(?P<members>(?:\\.|[^\]\\])*)\])|(?P<atom>(?:\\.|[^\s()|*+?{}\[\]\\])+)"
)
GAP = "___"
_GAP = re.compile(rf"{GAP}{_BOUNDS}?")
UNSUPPORTED = {  # the beginning of a part that only `re` can read, and what to write instead
    r"\(\?<?[=!]": "lookahead and lookbehind are not supported; combine several constraints instead",
    r"\(\?P<": "named groups are not supported; write ( )",
    r"\\[1-9]|\(\?P=": "backreferences are not supported; list the alternatives",
    r"\(\?": "flags are not supported; list the alternatives, such as [Aa]",
    r"\\[bBAZ]": "word boundaries and anchors are not supported; the pattern matches the whole text",
}


def of_characters(pattern: str, alphabet: Alphabet) -> Automaton:
    """The automaton of the sentences whose whole text matches a pattern in the syntax of Python's `re`."""
    characters = sorted({SPACE, *"".join(alphabet.words)})

    def atom(match: re.Match[str]) -> np.ndarray:
        try:
            one = re.compile(match["atom"])
        except re.error as error:
            raise TrellisError(f"The pattern {pattern!r} contains {match['atom']!r}: {error}.") from error
        return np.array([one.fullmatch(character) is not None for character in characters])

    anchored = pattern.removeprefix("^").removesuffix("$") if not pattern.endswith(r"\$") else pattern.removeprefix("^")
    tree = parsed(lexed(anchored, _CHARACTERS, atom, pattern), pattern)
    return lifted(automaton_of(tree, len(characters)), characters, alphabet)


def of_tokens(pattern: str, alphabet: Alphabet) -> Automaton:
    """The automaton of a pattern over tokens: words separated by spaces, `.` for any word, [a b] and [^a b] for sets,
    ( ) | * + ? {m,n} as usual. A backslash makes the next character an ordinary one."""

    def atom(match: re.Match[str]) -> Tree:
        if match["set"] is not None:
            members = np.zeros(len(alphabet.words), bool)
            for word in match["members"].split():
                tokens = alphabet.encode(unescaped(word))
                if len(tokens) != 1:
                    raise TrellisError(f"{word!r} in the pattern {pattern!r} is {len(tokens)} tokens, not one.")
                members[tokens] = True
            return alphabet.any_word & ~members if match["negated"] else members
        if match["atom"] == ".":
            return alphabet.any_word
        return phrase(alphabet.encode(unescaped(match["atom"])), alphabet)

    return automaton_of(parsed(lexed(pattern, _TOKENS, atom, pattern), pattern), len(alphabet.words))


def of_template(template: str, alphabet: Alphabet) -> Automaton:
    """The automaton of a text with gaps: ___ is one word, ___{2} two, ___{1,3} one to three, ___{2,} at least two."""
    if GAP + "_" in template:
        raise TrellisError(f"A gap is three underscores; {template!r} has more.")
    parts, position = list[Tree](), 0
    for gap in _GAP.finditer(template):
        bounds = bounds_of(gap, template) if gap["bounds"] else Bounds(1, 1)
        parts += [phrase(alphabet.encode(template[position : gap.start()]), alphabet)]
        parts += [Repeat(alphabet.any_word, bounds)]
        position = gap.end()
    return automaton_of(
        Sequenced([*parts, phrase(alphabet.encode(template[position:]), alphabet)]), len(alphabet.words)
    )


def phrase(tokens: Sequence[int], alphabet: Alphabet) -> Sequenced:
    return Sequenced([alphabet.mask([token]) for token in tokens])


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def bounds_of(match: re.Match[str], pattern: str) -> Bounds:
    least = int(match["least"] or 0)
    most = least if not match["range"] else int(match["most"]) if match["most"] else None
    if (not match["least"] and not match["most"]) or (most is not None and most < least):
        raise TrellisError(
            f"The repetition {match['bounds']} in {pattern!r} is invalid; write {{m}}, {{m,}} or {{m,n}}."
        )
    return Bounds(least, most)


def lexed(text: str, grammar: re.Pattern[str], atom: Callable[[re.Match[str]], Tree], pattern: str) -> list[Item]:
    """Split a pattern into operators "(", ")" and "|", repetitions, and atoms."""
    items, position = list[Item](), 0
    while position < len(text):
        match = grammar.match(text, position)
        if match is None:
            here = text[position:]
            reason = next((reason for part, reason in UNSUPPORTED.items() if re.match(part, here)), "")
            raise TrellisError(f"Cannot read the pattern {pattern!r} from {here[:10]!r} on{reason and ': ' + reason}.")
        position, found = match.end(), match.groupdict()
        if found["open"]:
            items.append("(")
        elif found["operator"]:
            items.append(found["operator"])
        elif found["repeat"]:
            items.append(REPEATS[found["repeat"]])
        elif found["bounds"]:
            items.append(bounds_of(match, pattern))
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
                if not parts:
                    raise TrellisError(f"The pattern {pattern!r} repeats nothing; put something before the repetition.")
                parts.append(Repeat(parts.pop(), item))
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


def is_operator(item: Item, operator: str) -> bool:
    return isinstance(item, str) and item == operator


class Ends(NamedTuple):
    """For a part of a pattern: whether it can be empty, and the positions where it can begin and end, as bits."""

    empty: bool
    first: int
    last: int


class Positions:
    """The position automaton of a tree."""

    def __init__(self) -> None:
        self.atoms: list[np.ndarray] = []
        self.follow: list[int] = []
        self.steps = 0

    def add(self, tree: Tree) -> Ends:
        if isinstance(tree, np.ndarray):
            if len(self.atoms) == MOST_POSITIONS:
                raise TrellisError(
                    f"A pattern has more than {MOST_POSITIONS:,} symbols with its repetitions; shorten it."
                )
            self.atoms.append(tree)
            self.follow.append(0)
            bit = 1 << (len(self.atoms) - 1)
            return Ends(False, bit, bit)
        if isinstance(tree, Choice):
            ends = [self.add(part) for part in tree.parts]
            return Ends(any(e.empty for e in ends), union(e.first for e in ends), union(e.last for e in ends))
        if isinstance(tree, Sequenced):
            return self.joined(self.add(part) for part in tree.parts)
        least, most = tree.bounds
        count, before = max(least, 1) if most is None else most, len(self.atoms)
        copies = [self.add(tree.part) for _ in range(min(count, 1))]
        if len(self.atoms) > before:  # copies of an empty part change nothing
            copies += [self.add(tree.part) for _ in range(count - 1)]
        if most is None:
            self.link(copies[-1].last, copies[-1].first)
        return self.joined(e._replace(empty=e.empty or i >= least) for i, e in enumerate(copies))

    def joined(self, ends: Iterable[Ends]) -> Ends:
        total = Ends(True, 0, 0)
        for one in ends:
            self.link(total.last, one.first)
            first = total.first | one.first if total.empty else total.first
            total = Ends(total.empty and one.empty, first, total.last | one.last if one.empty else one.last)
        return total

    def link(self, before: int, after: int) -> None:
        for position in self.places(before):
            self.follow[position] |= after

    def after(self, places: int) -> int:
        """The positions that can follow some positions."""
        return union(self.follow[position] for position in self.places(places))

    def places(self, number: int) -> Iterable[int]:
        """The positions in a set. Raises if a pattern takes too many steps in total."""
        self.steps += number.bit_count()
        if self.steps > MOST_STEPS:
            raise TrellisError("A pattern is too complex with its repetitions; simplify it.")
        return bits(number)


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


def automaton_of(tree: Tree, size: int) -> Automaton:
    """The deterministic automaton of a pattern over `size` symbols."""
    machine = Positions()
    ends = machine.add(tree)
    masks = np.stack([*machine.atoms, np.zeros(size, bool)])  # [P + 1, A]
    columns, classes = np.unique(np.packbits(masks, axis=0), axis=1, return_inverse=True)
    held = np.unpackbits(columns, axis=0, count=len(masks))
    holders = [union(1 << int(p) for p in np.flatnonzero(held[:, c])) for c in range(held.shape[1])]

    def step(state: tuple[int, bool]) -> Iterable[tuple[int, bool]]:
        here, at_start = state
        after = ends.first if at_start else machine.after(here)
        return ((after & holder, False) for holder in holders)

    def accepts(state: tuple[int, bool]) -> bool:
        return ends.empty if state[1] else bool(state[0] & ends.last)

    return explore((0, True), step, accepts, classes.reshape(-1))


def lifted(automaton: Automaton, characters: Sequence[str], alphabet: Alphabet) -> Automaton:
    """Convert an automaton over characters to one over tokens, which reads the text that the tokens form. A state of
    the new automaton is a pair: a state of the given automaton, and whether a space may come next."""
    number = {character: i for i, character in enumerate(characters)}
    longest = max(map(len, alphabet.words))
    letters = np.full((longest, len(alphabet.words)), automaton.moves.shape[1])  # beyond the end: stay
    for token, word in enumerate(alphabet.words):
        letters[: len(word), token] = automaton.classes[[number[character] for character in word]] if word else ()
    moves = np.column_stack([automaton.moves, np.arange(len(automaton.moves))])
    space, (tight_left, tight_right) = automaton.classes[number[SPACE]], alphabet.tight()

    def row(state: int, spaced: bool) -> np.ndarray:
        here = np.where(tight_left | ~np.bool_(spaced), state, moves[state, space])
        for letter in letters:
            here = moves[here, letter]
        return here * 2 + ~tight_right

    rows, found, place = list[np.ndarray](), [0], {0: 0}
    for code in found:  # grows in the loop
        rows.append(row(code // 2, bool(code % 2)))
        for after in np.unique(rows[-1]).tolist():
            if after not in place:
                place[after] = len(found)
                found.append(after)
        check_size(len(found))
    at = np.zeros(2 * len(moves), np.int64)
    at[found] = np.arange(len(found))
    accepting = automaton.accepting[np.array(found) // 2]
    return minimised(Automaton(at[np.stack(rows)], accepting, np.arange(len(alphabet.words))))
