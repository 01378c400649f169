"""The automaton of a constraint over time: its edges, and the pairs (t, s) that sequences can pass through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.constraints.automaton import Automaton


class Span(NamedTuple):
    """How long sequences are, and the token that ends them."""

    least: int
    most: int
    end: int | None  # None: a stream of exactly `most` tokens

    @property
    def ends(self) -> range:
        """The numbers of tokens after which a sequence may end."""
        return range(self.least if self.end is not None else self.most, self.most + 1)


class Edges(NamedTuple):
    """The possible continuations of n pairs (t, s)."""

    ends: Tensor  # whether the sequence may end: [n] bool
    source: Tensor  # of each edge: the index of its pair, in ascending order
    target: Tensor  # ... the row of the message that it leads to
    label: Tensor  # ... the set of classes of tokens


class Stage(NamedTuple):
    """The pairs (t, s) of one t whose messages are computed together."""

    rows: Tensor  # of their messages: [n]
    after: slice  # rows of the messages of t + 1, to which the targets are relative
    edges: Edges


class Onward(NamedTuple):
    """Edges from some states of the automaton after t tokens into states that can accept."""

    source: Tensor  # index among the given states: [n]
    label: Tensor  # the set of classes: [n]
    target: Tensor  # index among `states`: [n]
    states: Tensor  # the next states, distinct


class Lattice:
    """The automaton after t = 0 to `most` tokens. Its states are 0 to S - 1, and S, from which nothing is accepted.

    All classes that lead from one state to the same next state form one edge. `place[t, s]` is the row of a pair (t, s)
    that can be reached and can lead to acceptance; for all other pairs, it is `size`. From a `certain` state, every
    stream is accepted. `starts` are the states of the automaton before the first token."""

    def __init__(self, automaton: Automaton, span: Span, device: torch.device, starts: Sequence[int]) -> None:
        self.span, self.device, self.starts = span, device, starts
        dead, live = len(automaton.moves), automaton.live()
        moves, classes = np.where(live[automaton.moves], automaton.moves, dead), automaton.classes
        if span.end is not None:  # <eos> is a class of its own, which the automaton never reads
            classes = classes.copy()
            classes[span.end] = moves.shape[1]
            moves = np.column_stack([moves, np.full(dead, dead)])
        moves, accepting = np.vstack([moves, np.full_like(moves[:1], dead)]), np.append(automaton.accepting, False)
        self.classes, self.after, self.accepting = map(self.tensor, (classes, moves, accepting))  # [V], [S+1, C], [S+1]
        certain = np.append(unavoidable(automaton), False) & (span.end is None)
        self.certain = self.tensor(certain)  # [S + 1]
        self.find_edges(moves)
        self.find_pairs(moves, accepting, certain)

    def tensor(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def find_edges(self, moves: np.ndarray) -> None:
        dead, labels, masks = len(moves) - 1, dict[bytes, int](), list[np.ndarray]()
        rows, counts = list[tuple[int, int]](), list[int]()
        for state in range(dead):
            targets = [int(target) for target in np.unique(moves[state]) if target != dead]
            for target in targets:
                mask = moves[state] == target
                number = labels.setdefault(mask.tobytes(), len(labels))
                masks += [mask] if number == len(masks) else []
                rows.append((number, target))
            counts.append(len(targets))
        edges = np.array(rows, np.int64).reshape(-1, 2)
        self.label, self.target = self.tensor(edges[:, 0]), self.tensor(edges[:, 1])  # of each edge, by state
        self.counts = self.tensor(np.array([*counts, 0]))  # edges of each state
        self.begins = self.counts.cumsum(0) - self.counts
        self.labels = self.tensor(np.array(masks, bool).reshape(-1, moves.shape[1]))  # [L, C]

    def find_pairs(self, moves: np.ndarray, accepting: np.ndarray, certain: np.ndarray) -> None:
        most, dead = self.span.most, len(moves) - 1
        reach, alive = np.zeros((2, most + 2, dead + 1), bool)
        reach[0, self.starts] = True
        for t in range(most):
            reach[t + 1, np.unique(moves[reach[t]])] = True
        for t in range(most, -1, -1):
            ending = accepting if t in self.span.ends else np.zeros_like(accepting)
            alive[t] = ending | alive[t + 1][moves].any(1)
        kept = reach & alive
        kept[:, dead] = False
        self.size = int(kept.sum())
        place = np.full(kept.shape, self.size)
        place[kept] = np.arange(self.size)
        self.place = self.tensor(place)  # [most + 2, S + 1]
        self.sure = self.tensor(place[kept & certain])  # rows of pairs from which every stream is accepted
        self.kept, self.computed = kept, kept & ~certain

    def stages(self, every: bool) -> Iterator[Stage]:
        """The pairs of each t > 0, from the last t to the first: all pairs if `every`, otherwise only those whose state
        is not certain. The messages of t = 0 are never used."""
        chosen, known = self.kept if every else self.computed, dict[tuple[bytes, bool], tuple[Tensor, Edges]]()
        bounds = np.append(0, self.kept.sum(1).cumsum()).tolist()  # of the rows of each t
        for t in range(self.span.most, 0, -1):
            if chosen[t].any():
                key = self.kept[t : t + 2].tobytes(), t in self.span.ends
                if key not in known:
                    known[key] = self.edges_between(chosen[t], self.kept[t], self.kept[t + 1], key[1])
                places, edges = known[key]
                yield Stage(places + bounds[t], slice(bounds[t + 1], bounds[t + 2]), edges)

    def edges_between(
        self, chosen: np.ndarray, kept: np.ndarray, after: np.ndarray, ending: bool
    ) -> tuple[Tensor, Edges]:
        """For the chosen states of one t: their places among the kept states, and their edges into states kept at the
        next t."""
        states, places = self.tensor(np.flatnonzero(chosen)), self.tensor((kept.cumsum() - 1)[chosen])
        source, edge = self.edges_of(states)
        target = self.tensor(np.where(after, after.cumsum() - 1, -1))[self.target[edge]]
        into = target >= 0
        return places, Edges(self.accepting[states] & ending, source[into], target[into], self.label[edge][into])

    def rows(self, steps: Tensor, states: Tensor) -> Tensor:
        """The rows of pairs (t, s). All t beyond `most` share an entry."""
        return self.place[steps.clamp(max=self.span.most + 1), states]

    def may_end(self, steps: Tensor, states: Tensor) -> Tensor:
        """Whether a sequence may end at each pair (t, s): [n] bool."""
        ends = self.span.ends
        return self.accepting[states] & (steps >= ends.start) & (steps < ends.stop)

    def edges_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """All edges of some states [n]: for each edge, the index of its state among the given ones, and the edge."""
        counts = self.counts[states]
        source = torch.arange(len(states), device=self.device).repeat_interleave(counts)
        within = torch.arange(len(source), device=self.device) - (counts.cumsum(0) - counts)[source]
        return source, self.begins[states][source] + within

    @cached_property
    def side_by_side(self) -> tuple[Tensor, Tensor]:
        """The labels and targets of the edges of each state: [S + 1, D] each, for at most D > 0 edges. In the place of
        missing edges, the target is S."""
        place = torch.arange(int(self.counts.max()), device=self.device)
        edge = (self.begins.unsqueeze(-1) + place).clamp(max=len(self.label) - 1)
        missing = place >= self.counts.unsqueeze(-1)
        return self.label[edge], self.target[edge].masked_fill(missing, len(self.counts) - 1)

    def onward(self, step: int, states: Tensor) -> Onward:
        """The edges of states after `step` tokens."""
        source, edge = self.edges_of(states)
        keep = self.place[step + 1, self.target[edge]] < self.size
        source, edge = source[keep], edge[keep]
        after, target = self.target[edge].unique(return_inverse=True)
        return Onward(source, self.label[edge], target, after)


def unavoidable(automaton: Automaton) -> np.ndarray:
    """The states from which every continuation is accepted: [S] bool."""
    found = automaton.accepting.copy()
    while not np.array_equal(found, after := found & found[automaton.moves].all(1)):
        found = after
    return found
