"""Deterministic automata over tokens, as tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from trellis.errors import TrellisError

LARGEST = 20_000  # states of an automaton
SHOWN = 3  # words of an edge in text and pictures

Key = TypeVar("Key", bound=Hashable)


class Automaton(NamedTuple):
    """A complete deterministic automaton over V tokens; it starts in state 0.

    Tokens that lead to the same state from every state share a class. `moves[s, classes[token]]` is the state that
    `token` leads to from state s.

    Parameters
    ----------
    moves
        The next state for each of S states and C classes of tokens, [S, C].
    accepting
        Whether a sentence may end in a state, [S].
    classes
        The class of each token, [V].
    """

    moves: np.ndarray
    accepting: np.ndarray
    classes: np.ndarray

    def __repr__(self) -> str:
        return (
            f"<Automaton: {len(self.moves):,} states, {self.moves.shape[1]:,} classes of {len(self.classes):,} tokens>"
        )

    def read(self, tokens: Iterable[int], state: int = 0) -> int:
        """The state after some tokens."""
        for token in tokens:
            state = int(self.moves[state, self.classes[token]])
        return state

    def accepts(self, tokens: Iterable[int]) -> bool:
        """Whether a sentence may end after these tokens."""
        return bool(self.accepting[self.read(tokens)])

    def live(self) -> np.ndarray:
        """The states from which an accepting state can be reached: [S] bool."""
        return np.isfinite(distances(self.moves, self.accepting))

    @property
    def is_empty(self) -> bool:
        """Whether no sequence is accepted. All states can be reached, so this is the case if no state accepts."""
        return not self.accepting.any()

    def complement(self) -> Automaton:
        """The automaton that accepts exactly the sentences that this one rejects."""
        return self._replace(accepting=~self.accepting)

    def edges(self) -> list[tuple[int, int, np.ndarray]]:
        """(state, next state, tokens) of every edge between states from which an accepting state can be
        reached."""
        found, live = [], self.live()
        for state in np.flatnonzero(live):
            for after in np.unique(self.moves[state]):
                if live[after]:
                    chosen = np.flatnonzero(self.moves[state] == after)
                    found.append((int(state), int(after), np.flatnonzero(np.isin(self.classes, chosen))))
        return found

    def text(self, words: Sequence[str]) -> str:
        """The states and edges, one per line."""
        lines, edges = [], groupby(self.edges(), itemgetter(0))
        own = {state: [f"  -> {after}  {label(tokens, words)}" for _, after, tokens in some] for state, some in edges}
        for state in np.flatnonzero(self.live()):
            marks = ["start"] * bool(state == 0) + ["accepting"] * bool(self.accepting[state])
            lines.append(f"{state}" + f" ({', '.join(marks)})" * bool(marks))
            lines += own.get(state, [])
        return "\n".join(lines)


def label(tokens: np.ndarray, words: Sequence[str]) -> str:
    """A short description of a set of tokens."""
    others = len(words) - len(tokens)
    if not others:
        return "any token"
    if others <= 2 * SHOWN < len(tokens):
        rest = np.setdiff1d(np.arange(len(words)), tokens)
        return f"any token but {', '.join(words[i] for i in rest)}"
    shown = ", ".join(words[i] for i in tokens[:SHOWN])
    return shown if len(tokens) <= SHOWN else f"{shown}, ... ({len(tokens):,} tokens)"


def explore(
    first: Key, step: Callable[[Key], Iterable[Key]], accepts: Callable[[Key], bool], classes: np.ndarray
) -> Automaton:
    """The minimal automaton of a machine whose first state is `first`. `step(state)` returns the next state for every
    class of tokens. States are computed only when they are reached."""
    number, found, moves = {first: 0}, [first], list[list[int]]()
    for state in found:  # grows in the loop
        row = []
        for after in step(state):
            if after not in number:
                number[after] = len(found)
                found.append(after)
            row.append(number[after])
        moves.append(row)
        check_size(len(found))
    return minimised(Automaton(np.array(moves), np.array([accepts(state) for state in found]), classes))


def side_by_side(automata: Sequence[Automaton]) -> tuple[Automaton, list[int]]:
    """Combine several automata into one automaton without edges between them. Also returns the first state of each."""
    chosen, classes = np.unique(np.stack([one.classes for one in automata]), axis=1, return_inverse=True)
    sizes = [len(one.moves) for one in automata]
    starts = (np.cumsum(sizes) - sizes).tolist()
    check_size(sum(sizes))
    moves = [one.moves[:, columns] + first for one, columns, first in zip(automata, chosen, starts, strict=True)]
    accepting = np.concatenate([one.accepting for one in automata])
    return Automaton(np.concatenate(moves), accepting, classes.reshape(-1)), starts


def check_size(states: int) -> None:
    if states > LARGEST:
        raise TrellisError(
            f"The automaton of the constraint has more than {LARGEST:,} states; simplify the constraint."
        )


def minimised(automaton: Automaton) -> Automaton:
    """The smallest equivalent automaton. Moore's algorithm merges reachable states; then classes with equal edges are
    merged. States are numbered in breadth-first order, so that equivalent automata are equal.

    Equivalent states have equal distances to acceptance and to rejection. If it starts from the partition by these
    distances, Moore's algorithm needs few rounds for long phrases, instead of one for each word."""
    moves, accepting, classes = automaton
    used, classes = np.unique(classes, return_inverse=True)  # drop classes without tokens
    moves, classes = merged(moves[:, used], classes)
    order = breadth_first(moves)
    place = np.zeros(len(moves), np.int64)
    place[order] = np.arange(len(order))
    moves, accepting = place[moves[order]], accepting[order]
    apart = np.column_stack([distances(moves, accepting), distances(moves, ~accepting)])
    block, count = np.unique(apart, axis=0, return_inverse=True)[1].reshape(-1), 0
    while (blocks := len(np.unique(block))) > count:
        count = blocks
        block = np.unique(np.column_stack([block, block[moves]]), axis=0, return_inverse=True)[1].reshape(-1)
    _, first = np.unique(block, return_index=True)  # a member of each block
    moves, accepting, start = block[moves[first]], accepting[first], block[0]
    order = breadth_first(moves, int(start))
    place = np.argsort(order)
    moves, classes = merged(place[moves[order]], classes)
    return Automaton(moves, accepting[order], classes)


def merged(moves: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge classes of tokens whose edges are equal; returns the edges and the class of each token."""
    columns, number = np.unique(moves, axis=1, return_inverse=True)
    return columns, number.reshape(-1)[classes.reshape(-1)]


def distances(moves: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The number of edges from each state to the nearest target, [S]; infinite if none can be reached."""
    if not targets.any():
        return np.full(len(moves), np.inf)
    before = np.repeat(np.arange(len(moves)), moves.shape[1])
    reversed_edges = csr_matrix((np.ones(len(before), bool), (moves.reshape(-1), before)), shape=(len(moves),) * 2)
    return dijkstra(reversed_edges, indices=np.flatnonzero(targets), unweighted=True, min_only=True)


def breadth_first(moves: np.ndarray, start: int = 0) -> np.ndarray:
    """The reachable states, in breadth-first order."""
    seen = np.zeros(len(moves), bool)
    seen[start], found, level = True, [np.array([start])], np.array([start])
    while len(level):
        after = moves[level].reshape(-1)
        after = after[~seen[after]]
        level = after[np.sort(np.unique(after, return_index=True)[1])]
        seen[level] = True
        found.append(level)
    return np.concatenate(found)


def product(one: Automaton, other: Automaton, accepting: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Automaton:
    """The product of two automata. `accepting` combines their accepting states; np.logical_and, for example, requires
    that both accept."""
    width = other.moves.shape[1]
    codes, classes = np.unique(one.classes * width + other.classes, return_inverse=True)
    left, right, size = one.moves[:, codes // width], other.moves[:, codes % width], len(other.moves)
    known, level, rows = np.array([0]), np.array([0]), []
    found = [level]
    while len(level):
        after = left[level // size] * size + right[level % size]  # [n, C]
        rows.append(after)
        level = np.setdiff1d(after, known)
        known = np.union1d(known, level)
        found.append(level)
        check_size(len(known))
    pairs = np.concatenate(found)
    order = np.argsort(pairs)
    moves = order[np.searchsorted(pairs[order], np.concatenate(rows))]
    accepts = accepting(one.accepting[pairs // size], other.accepting[pairs % size])
    return minimised(Automaton(moves, accepts, classes.reshape(-1)))


def concatenation(one: Automaton, other: Automaton) -> Automaton:
    """The automaton that accepts a sequence of the first automaton followed by a sequence of the second."""
    width = other.moves.shape[1]
    codes, classes = np.unique(one.classes * width + other.classes, return_inverse=True)
    left, right = one.moves[:, codes // width], other.moves[:, codes % width]
    live, dead = other.live(), ~one.live()

    def with_start(state: int, rest: Iterable[int]) -> tuple[int, frozenset[int]]:
        begins = [0] if one.accepting[state] else []
        state = -1 if dead[state] else state
        return state, frozenset(s for s in [*rest, *begins] if live[s])

    def step(pair: tuple[int, frozenset[int]]) -> Iterable[tuple[int, frozenset[int]]]:
        state, rest = pair
        for c in range(len(codes)):
            after = {int(right[s, c]) for s in rest}
            if state < 0:
                yield -1, frozenset(s for s in after if live[s])
            else:
                yield with_start(int(left[state, c]), after)

    def accepts(pair: tuple[int, frozenset[int]]) -> bool:
        return any(bool(other.accepting[s]) for s in pair[1])

    return explore(with_start(0, ()), step, accepts, classes.reshape(-1))
