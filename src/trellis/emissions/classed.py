"""Symbols in classes: sums, maxima and predictions of an emission, class by class."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from trellis.emissions.base import ENTRIES, SymbolEmission


class Classed:
    """p(x | z) of V symbols in C classes [V]. Symbols are kept in the order of their classes, so each class is a slice
    of rows, and every function costs O(V k) per sequence, with k live states per symbol."""

    def __init__(self, emission: SymbolEmission, classes: Tensor, num_classes: int) -> None:
        self.emission, self.classes, self.num_classes = emission, classes, num_classes
        self.order = classes.argsort(stable=True)
        known = emission.potentials(self.order.unsqueeze(0), all_observed=True)
        self.weights = known.table[known.rows[0]].exp()  # [V, k], as all that follows in order
        self.ids = None if known.ids is None else known.ids[0]
        self.place = self.order.argsort()  # of a symbol in that order
        self.begins = [0, *torch.bincount(classes, minlength=num_classes).cumsum(0).tolist()]

    def totals(self) -> Tensor:
        """sum of p(x | z) over the symbols of each class: [C, K]."""
        return self.reduced("sum")

    def best(self) -> Tensor:
        """max of p(x | z) over the symbols of each class: [C, K]."""
        return self.reduced("amax")

    def reduced(self, reduce: str) -> Tensor:
        found = self.weights.new_zeros(self.num_classes * self.emission.num_states)
        for some in self.chunks():
            weights = self.weights[some]
            states = torch.arange(weights.shape[1], device=weights.device) if self.ids is None else self.ids[some]
            index = self.classes[self.order[some]].unsqueeze(-1) * self.emission.num_states + states
            found.scatter_reduce_(0, index.flatten(), weights.flatten(), reduce)
        return found.view(self.num_classes, -1)

    def chunks(self) -> Iterator[slice]:
        size = max(1, ENTRIES // self.weights.shape[1])
        return (slice(first, first + size) for first in range(0, len(self.weights), size))

    def predict(self, probs: Callable[[int], Tensor | None]) -> Tensor:
        """sum_z probs(c)[b, z] p(x | z), where c is the class of x: [B, V]; None is zero. One product per class."""
        found = None
        for c in range(self.num_classes):
            first, last = self.begins[c : c + 2]
            given = probs(c) if first < last else None
            if given is not None:
                found = given.new_zeros(len(given), len(self.weights)) if found is None else found
                found[:, first:last] = self.product(given, slice(first, last))
        assert found is not None
        return found[:, self.place]

    def marginal(self, probs: Tensor) -> Tensor:
        """sum_z probs[b, z] p(x | z): [B, K] -> [B, V]."""
        return self.product(probs, slice(None))[:, self.place]

    def product(self, probs: Tensor, rows: slice) -> Tensor:
        """[B, K] -> [B, n] for some symbols."""
        weights = self.weights[rows]
        if self.ids is None:
            return probs @ weights.T
        size = max(1, ENTRIES // (len(probs) * weights.shape[1]))
        pieces = zip(self.ids[rows].split(size), weights.split(size), strict=True)
        return torch.cat([torch.einsum("bnk,nk->bn", probs[:, ids], weight) for ids, weight in pieces], -1)

    def likelihoods(self, symbols: Tensor) -> Tensor:
        """p(x | z) of one symbol per sequence: [B] -> [B, K]."""
        rows = self.place[symbols]
        if self.ids is None:
            return self.weights[rows]
        found = self.weights.new_zeros(len(rows), self.emission.num_states)
        return found.scatter_add_(-1, self.ids[rows], self.weights[rows])

    def columns(self, states: Tensor) -> Tensor:
        """p(x | z) of one state per sequence: [B] -> [B, V]."""
        distinct, row = states.unique(return_inverse=True)
        return self.emission.columns(distinct).T.exp()[row]
