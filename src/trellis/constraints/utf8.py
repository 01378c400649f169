"""Automata over characters, as automata over the bytes of UTF-8. Bytes that are not UTF-8 are rejected, or read as the
character U+FFFD, as when Python decodes with errors="replace"."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from trellis.constraints.automaton import Automaton, explore

REPLACEMENT = 0xFFFD
NARROW = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}  # for the second byte


class Partial(NamedTuple):
    """A character of which some bytes have been read."""

    missing: int  # number of bytes
    low: int  # the next byte is one of low, ..., high
    high: int
    after: tuple[tuple[int, int], ...]  # the next state for the possible characters: (first character, state), ...
    broken: int  # the next state if another byte follows


@cache
def all_characters() -> str:
    return "".join(map(chr, range(sys.maxunicode + 1)))


@lru_cache(maxsize=1024)
def changes(atom: str) -> frozenset[int]:
    """The characters at which a sequence of matches or of mismatches begins, in the order of all characters."""
    runs = (run.span() for run in re.finditer(f"(?:{atom})+", all_characters()))
    return frozenset(place for run in runs for place in run)


def over_bytes(automaton: Automaton, characters: Sequence[str], replaces: bool = True) -> Automaton:
    """Convert an automaton over ranges of characters to one over bytes. `characters` are the first characters of the
    ranges. Without `replaces`, bytes that are not UTF-8 are rejected."""
    starts, dead = np.array([ord(character) for character in characters]), len(automaton.moves)
    moves = np.vstack([automaton.moves[:, automaton.classes], np.full(len(starts), dead)])
    accepting = np.append(automaton.accepting, False)
    replaced = moves[:, np.searchsorted(starts, REPLACEMENT, "right") - 1].tolist() if replaces else [dead] * len(moves)

    def within(state: int, low: int, size: int) -> tuple[tuple[int, int], ...]:
        """The next states for the characters from `low` on, counted from there."""
        first, last = np.searchsorted(starts, low, "right") - 1, np.searchsorted(starts, low + size, "left")
        return shortened(zip((starts[first:last] - low).tolist(), moves[state, first:last].tolist(), strict=True))

    @cache
    def row(state: int) -> list[int | Partial]:
        """The next state for each byte, at the beginning of a character."""
        ascii_states = moves[state, np.searchsorted(starts, np.arange(0x80), "right") - 1].tolist()
        found: list[int | Partial] = [*ascii_states, *[replaced[state]] * 0x80]
        for byte in range(0xC2, 0xF5):
            missing = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
            low, size = (byte & (0x3F >> missing)) << 6 * missing, 1 << 6 * missing
            narrow = NARROW.get(byte, (0x80, 0xBF))
            found[byte] = Partial(missing, *narrow, within(state, low, size), replaced[state])
        return found

    def step(state: int | Partial) -> list[int | Partial]:
        if isinstance(state, int):
            return row(state)
        found, size = list(row(state.broken)), 1 << 6 * (state.missing - 1)
        for byte in range(state.low, state.high + 1):
            low = (byte & 0x3F) * size
            after = shortened((first - low, after) for first, after in state.after if first < low + size)
            found[byte] = Partial(state.missing - 1, 0x80, 0xBF, after, state.broken) if size > 1 else after[0][1]
        return found

    def accepts(state: int | Partial) -> bool:
        return bool(accepting[state if isinstance(state, int) else state.broken])

    first: int | Partial = 0
    return explore(first, step, accepts, np.arange(256))


def shortened(after: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same next states as runs: from 0 on, without neighbours that are equal."""
    found = list[tuple[int, int]]()
    for first, state in after:
        if first <= 0:
            found = [(0, state)]
        elif state != found[-1][1]:
            found.append((first, state))
    return tuple(found)
