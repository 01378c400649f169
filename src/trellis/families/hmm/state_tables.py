"""All states of an HMM as arrays, for a page without a server; computed together, a tile of the transitions at a
time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from trellis.explore.packed import LEVELS, Links, StateTables
from trellis.families.hmm.model import HMM
from trellis.families.hmm.state_views import StateViews

WORDS, LINKS, CONTEXTS = LEVELS[0]
MOST_STATES = 8_192  # for which transitions and similarities of all pairs of states are computed
ROWS = 512  # states at a time


@torch.no_grad()
def state_tables(views: StateViews, contexts: int = CONTEXTS) -> StateTables:
    """The tables of a model whose map has been computed."""
    assert views.layout is not None
    top, states = views.model.parts().emission.top(WORDS), views.model.num_states
    linked = states <= MOST_STATES
    classes = views.classes()["items"]
    placed = zip(classes, views.layout.centres.astype(float).round(3).tolist(), strict=True)
    return StateTables(
        top.indices.cpu().numpy(),
        top.values.exp().cpu().numpy(),
        views.unigram.cpu().numpy(),
        views.occupancy.cpu().numpy(),
        views.layout.points,
        views.layout.groups,
        [one | {"x": x, "y": y} for one, (x, y) in placed],
        links_of(views) if linked else None,
        [contexts_of(views, state, contexts) if linked else [] for state in range(states)],
    )


def links_of(views: StateViews) -> dict[str, Links]:
    """Successors and predecessors, merged by word, and similar states. One matrix of all pairs is in memory."""
    matrix, groups = matrix_of(views.model), ByWord(views.best_words.cpu().numpy())
    occupancy = views.occupancy.to(torch.float32).cpu().numpy()
    tiles = [slice(start, start + ROWS) for start in range(0, len(matrix), ROWS)]
    return {
        "outgoing": groups.links(matrix[tile] for tile in tiles),
        "incoming": groups.links(before(matrix[:, tile], occupancy) for tile in tiles),
        "neighbours": similar(views),
    }


def matrix_of(model: HMM) -> np.ndarray:
    """The transition probabilities in float32: [K, K]."""
    transition, found = model.parts().transition, np.empty((model.num_states, model.num_states), np.float32)
    for some in torch.arange(model.num_states, device=model.device).split(ROWS):
        found[int(some[0]) : int(some[-1]) + 1] = transition.rows(some).cpu().numpy()
    return found


def before(columns: np.ndarray, occupancy: np.ndarray) -> np.ndarray:
    """The probabilities of the states before some states, from their columns of the matrix: [K, n] -> [n, K]."""
    joint = (columns * occupancy[:, None]).T
    joint /= np.maximum(joint.sum(1, keepdims=True), np.finfo(joint.dtype).tiny)
    return joint


class ByWord:
    """States grouped by their most probable word [K]."""

    def __init__(self, best: np.ndarray) -> None:
        self.order = np.argsort(best, kind="stable")
        self.begins = np.flatnonzero(np.diff(best[self.order], prepend=-1))
        self.ends = np.append(self.begins[1:], len(best))

    def links(self, tiles: Iterable[np.ndarray]) -> Links:
        """For each row of a table of probabilities [n, K], given in tiles: the groups with the largest sums, each with
        its most probable state and its sum."""
        found = [self.some(tile) for tile in tiles]
        return Links(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def some(self, probs: np.ndarray) -> Links:
        sorted_probs = probs[:, self.order]
        totals = torch.from_numpy(np.add.reduceat(sorted_probs, self.begins, axis=1))
        top = totals.topk(min(LINKS, totals.shape[1]))
        states = np.full(top.indices.shape, -1)
        for row, groups in enumerate(top.indices.tolist()):
            here = sorted_probs[row]
            for i, group in enumerate(groups):
                begin = self.begins[group]
                states[row, i] = self.order[begin + here[begin : self.ends[group]].argmax()]
        return Links(np.where(top.values.numpy() > 0, states, -1), top.values.numpy())


def similar(views: StateViews) -> Links:
    """The states with the most similar vectors."""
    unit = views.unit_vectors
    states = torch.arange(len(unit), device=unit.device)
    tops = [nearest(unit, some) for some in states.split(ROWS)]
    return Links(*(torch.cat(parts).cpu().numpy() for parts in zip(*tops, strict=True)))


def nearest(unit: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
    cosines = unit[some] @ unit.T
    cosines[torch.arange(len(some), device=some.device), some] = -torch.inf
    top = cosines.topk(min(LINKS, max(1, len(unit) - 1)))
    found = top.values > -torch.inf
    return torch.where(found, top.indices, -1), torch.where(found, top.values, 0.0)


def contexts_of(views: StateViews, state: int, n: int) -> list[tuple[list[int], int, list[int], float]]:
    index = views.model.vocab.index
    found = views.concordance.find(state, n) if n else []
    return [
        ([index[w] for w in one["before"]], index[one["word"]], [index[w] for w in one["after"]], one["prob"])
        for one in found
    ]
