"""Patterns over tokens or over the characters of a text, and texts with gaps, as automata over tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

import numpy as np

from trellis.constraints.alphabet import Alphabet
from trellis.constraints.automaton import Automaton
from trellis.constraints.glushkov import automaton_of
from trellis.constraints.syntax import (
    CHARACTERS,
    GAP,
    GAPS,
    TOKENS,
    Bounds,
    Repeat,
    Sequenced,
    Tree,
    bounds_of,
    lexed,
    parsed,
    unescaped,
)
from trellis.constraints.text import characters_of, lifted
from trellis.constraints.utf8 import changes
from trellis.errors import TrellisError


def of_characters(pattern: str, alphabet: Alphabet) -> Automaton:
    """The automaton of the sentences whose whole text matches a pattern in the syntax of Python's `re`."""
    atoms = dict[str, re.Pattern[str]]()

    def collected(match: re.Match[str]) -> Tree:
        try:
            atoms[match["atom"]] = re.compile(match["atom"])
        except re.error as error:
            raise TrellisError(f"The pattern {pattern!r} contains {match['atom']!r}: {error}.") from error
        return Sequenced([])

    lexed(pattern, CHARACTERS, collected)
    characters = characters_of(alphabet, lambda: chain.from_iterable(map(changes, atoms)))
    sets = {atom: np.array([bool(one.fullmatch(each)) for each in characters]) for atom, one in atoms.items()}
    newline = characters.index("\n") if "\n" in characters else None
    tree = parsed(lexed(pattern, CHARACTERS, lambda match: sets[match["atom"]]), pattern)
    return lifted(automaton_of(tree, len(characters), newline), characters, alphabet)


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

    return automaton_of(parsed(lexed(pattern, TOKENS, atom), pattern), len(alphabet.words))


def of_template(template: str, alphabet: Alphabet) -> Automaton:
    """The automaton of a text with gaps: ___ is one word, ___{2} two, ___{1,3} one to three, ___{2,} at least two."""
    if GAP + "_" in template:
        raise TrellisError(f"A gap is three underscores; {template!r} has more.")
    parts, position = list[Tree](), 0
    for gap in GAPS.finditer(template):
        bounds = bounds_of(gap, template) if gap["bounds"] else Bounds(1, 1)
        parts += [phrase(alphabet.encode(template[position : gap.start()]), alphabet)]
        parts += [Repeat(alphabet.any_word, bounds)]
        position = gap.end()
    return automaton_of(
        Sequenced([*parts, phrase(alphabet.encode(template[position:]), alphabet)]), len(alphabet.words)
    )


def phrase(tokens: Sequence[int], alphabet: Alphabet) -> Sequenced:
    return Sequenced([alphabet.mask([token]) for token in tokens])
