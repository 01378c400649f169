"""Automata over the characters of a text, as automata over the tokens that form it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trellis.constraints.alphabet import Alphabet
from trellis.constraints.automaton import Automaton, check_size, minimised

SPACE = " "


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
