"""The automaton of a constraint over time: its edges, and the pairs (t, s) that sequences can pass through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.constraints.automaton import Automaton
from trellis.devices import together
from trellis.emissions.base import ENTRIES
from trellis.kernels.lse.tiled import slices


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

    ends: Tensor  # whether the sequence may end: [n] bool, or 0 and 1
    begins: Tensor  # the first edge of each pair, and the number of all edges: [n + 1]
    source: Tensor  # of each edge: the index of its pair, in ascending order
    target: Tensor  # ... the row of the message that it leads to
    label: Tensor  # ... the set of classes of tokens


class Stage(NamedTuple):
    """The pairs (t, s) of one t whose messages are computed together."""

    row: int  # of their first message; the others follow
    after: int  # the first row of t + 1, to which the targets are relative
    edges: int  # which of the edges


class Stages(NamedTuple):
    """The stages in the order of their computation. Many of them have the same edges. All edges are one tensor, which
    is moved at once."""

    order: tuple[Stage, ...]
    sizes: tuple[tuple[int, ...], ...]  # of the parts of each Edges
    table: Tensor


def edges_in(table: Tensor, sizes: tuple[tuple[int, ...], ...]) -> list[Edges]:
    """The edges that a table holds."""
    parts = iter(table.split([size for some in sizes for size in some]))
    return [Edges(*islice(parts, len(some))) for some in sizes]


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
        alive = self.alive(automaton)
        dead, live = len(automaton.moves), np.asarray(alive.any(0))
        moves, self.classes = np.where(live[automaton.moves], automaton.moves, dead), automaton.classes
        if span.end is not None:  # <eos> is a class of its own, which the automaton never reads
            self.classes = self.classes.copy()
            self.classes[span.end] = moves.shape[1]
            moves = np.column_stack([moves, np.full(dead, dead)])
        moves, self.accepts = np.vstack([moves, np.full_like(moves[:1], dead)]), np.append(automaton.accepting, False)
        certain = np.append(unavoidable(automaton), False) & (span.end is None)
        masks = self.find_edges(moves)
        self.find_pairs(moves, np.pad(alive, ((0, 0), (0, 1))), certain)
        counts = np.bincount(self.leaves, minlength=dead + 1)
        tables = moves, self.accepts, certain, self.enters, self.labelled, masks, counts, counts.cumsum() - counts
        sure = self.places[self.kept & certain]
        self.after, self.accepting, self.certain, *rest = together((*tables, self.places, sure), device)
        self.target, self.label, self.labels, *rest = rest  # of each edge, by state; [L, C]
        self.counts, self.begins, self.place, self.sure = rest  # edges of each state; [most + 2, S + 1]; certain pairs

    def alive(self, automaton: Automaton) -> np.ndarray:
        """Whether a sequence can still satisfy the constraint after t tokens, in each state: [most + 2, S] bool."""
        ends, t = self.span.ends, self.span.most
        found = np.zeros((t + 2, len(automaton.moves)), bool)
        while t >= 0:
            found[t] = found[t + 1][automaton.moves].any(1) | automaton.accepting & (t in ends)
            if np.array_equal(found[t], found[t + 1]):  # so are all earlier ones, until sequences may not end
                first = ends.start if t in ends else 0
                found[first:t], t = found[t], first
            t -= 1
        return found

    def find_edges(self, moves: np.ndarray) -> np.ndarray:
        """Find the edges: the states that they leave and enter, and their labels. Returns the classes of each label,
        [L, C]."""
        dead, number = len(moves) - 1, dict[bytes, int]()
        edges = np.unique(np.arange(dead)[:, None] * len(moves) + moves[:dead])
        self.leaves, self.enters = np.divmod(edges[edges % len(moves) != dead], len(moves))
        pieces = slices(len(self.leaves), ENTRIES // moves.shape[1])
        masks = (moves[self.leaves[some]] == self.enters[some, None] for some in pieces)
        self.labelled = np.array([number.setdefault(row.tobytes(), len(number)) for part in masks for row in part], int)
        return np.frombuffer(b"".join(number), bool).reshape(-1, moves.shape[1])

    def find_pairs(self, moves: np.ndarray, alive: np.ndarray, certain: np.ndarray) -> None:
        """Number the pairs by t; among those of the same t, the certain ones are last."""
        reach = np.zeros_like(alive)
        reach[0, self.starts] = True
        for t in range(self.span.most):
            reach[t + 1, moves[reach[t]]] = True
            if np.array_equal(reach[t], reach[t + 1]):
                reach[t:] = reach[t]
                break
        self.kept = reach & alive
        self.size, self.computed = int(self.kept.sum()), self.kept & ~certain
        order = certain.argsort(kind="stable")
        kept = self.kept[:, order]
        self.places = np.empty(kept.shape, np.int64)
        self.places[:, order] = np.where(kept, kept.cumsum().reshape(kept.shape) - 1, self.size)

    def stages(self, every: bool) -> Stages:
        """The pairs of each t > 0, from the last t to the first: all pairs if `every`, otherwise only those whose state
        is not certain. The messages of t = 0 are never used."""
        chosen, known = self.kept if every else self.computed, dict[tuple[bytes, bool], int]()
        bounds = np.append(0, self.kept.sum(1).cumsum()).tolist()  # of the rows of each t
        order, parts = list[Stage](), list[list[np.ndarray]]()
        for t in reversed((np.flatnonzero(chosen[1:].any(1)) + 1).tolist()):
            key = self.kept[t : t + 2].tobytes(), t in self.span.ends
            if key not in known:
                parts.append(self.edges_between(chosen[t], t, bounds))
            order.append(Stage(bounds[t], bounds[t + 1], known.setdefault(key, len(known))))
        sizes = tuple(tuple(map(len, some)) for some in parts)
        (table,) = together([np.concatenate([np.empty(0, int), *chain(*parts)])], self.device)
        return Stages(tuple(order), sizes, table)

    def edges_between(self, chosen: np.ndarray, t: int, bounds: Sequence[int]) -> list[np.ndarray]:
        """The edges from the chosen states of one t into pairs of the next t."""
        here, after = self.places[t] - bounds[t], self.places[t + 1]
        edge = np.flatnonzero(chosen[self.leaves] & (after[self.enters] < self.size))
        edge = edge[here[self.leaves[edge]].argsort(kind="stable")]
        source, ends = here[self.leaves[edge]], np.zeros(chosen.sum(), bool)
        ends[here[chosen]] = self.accepts[chosen] & (t in self.span.ends)
        begins = source.searchsorted(np.arange(len(ends) + 1))
        return [ends, begins, source, after[self.enters[edge]] - bounds[t + 1], self.labelled[edge]]

    def rows(self, steps: Tensor, states: Tensor) -> Tensor:
        """The rows of pairs (t, s). All t beyond `most` share an entry."""
        return self.place[steps.clamp(max=self.span.most + 1), states]

    def may_end(self, steps: Tensor, states: Tensor) -> Tensor:
        """Whether a sequence may end at each pair (t, s): [n] bool."""
        ends = self.span.ends
        return self.accepting[states] & (steps >= ends.start) & (steps < ends.stop)

    def edges_of(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All edges of some states [n]: where the edges of each state begin, [n + 1]; for each edge, the index of its
        state among the given ones, and the edge."""
        counts = self.counts[states]
        begins = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        source = torch.arange(len(states), device=self.device).repeat_interleave(counts)
        within = torch.arange(len(source), device=self.device) - begins[source]
        return begins, source, self.begins[states][source] + within

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
        _, source, edge = self.edges_of(states)
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
