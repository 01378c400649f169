"""Automata over the characters of a text, as automata over the tokens that form it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from trellis.constraints.alphabet import Alphabet
from trellis.constraints.automaton import Automaton, check_size, minimised
from trellis.constraints.utf8 import over_bytes

SPACE = " "


def characters_of(alphabet: Alphabet, changes: Callable[[], Iterable[int]]) -> list[str]:
    """The characters of texts. If tokens consist of bytes, texts can contain all characters, and the result has the
    first one of each range; a new range begins at each number of `changes()`."""
    if alphabet.utf8 is None:
        return sorted({SPACE, *"".join(alphabet.words)})
    newline = ord("\n")
    return [chr(first) for first in sorted({0, newline, newline + 1, *changes()}) if first < 0x110000]


def lifted(automaton: Automaton, characters: Sequence[str], alphabet: Alphabet) -> Automaton:
    """Convert an automaton over characters to one over tokens, which reads the text that the tokens form."""
    if alphabet.utf8 is not None:
        always = np.ones(len(alphabet.words), bool)
        return over_tokens(over_bytes(automaton, characters, alphabet.replaces), alphabet.utf8, 0, (always, always))
    number = {character: i for i, character in enumerate(characters)}
    spelled = [[number[character] for character in word] for word in alphabet.words]
    return over_tokens(automaton, spelled, number[SPACE], alphabet.tight())


def over_tokens(
    automaton: Automaton, spelled: Sequence[Sequence[int]], space: int, tight: tuple[np.ndarray, np.ndarray]
) -> Automaton:
    """Convert an automaton over symbols to one over tokens. A state of the new automaton is a pair: a state of the
    given automaton, and whether a space may come next.

    `spelled` has the symbols of each token, `space` is the symbol of a space, and `tight` masks the tokens without
    spaces before and after them."""
    longest, classes = max(map(len, spelled)), automaton.classes
    letters = np.full((longest, len(spelled)), automaton.moves.shape[1])  # beyond the end: stay
    for token, symbols in enumerate(spelled):
        letters[: len(symbols), token] = classes[list(symbols)]
    moves = np.column_stack([automaton.moves, np.arange(len(automaton.moves))])
    tight_left, tight_right = tight

    def row(state: int, spaced: bool) -> np.ndarray:
        here = np.where(tight_left | ~np.bool_(spaced), state, moves[state, classes[space]])
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
    return minimised(Automaton(at[np.stack(rows)], accepting, np.arange(len(spelled))))
