"""Symbols in classes: sums, maxima and predictions of an emission, class by class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.devices import together
from trellis.emissions.base import ENTRIES, SymbolEmission
from trellis.kernels.thin import few_times

FEW = 64  # symbols whose sums by class are one product


class Likelihoods(ABC):
    """p(x | z) of V symbols and K states, computed once for many constraints."""

    def __init__(self, emission: SymbolEmission) -> None:
        self.emission, self.num_states, self.num_symbols = emission, emission.num_states, emission.num_symbols
        self.graphs: dict[Hashable, Any] = {}  # CUDA graphs that prepare constraints

    @classmethod
    def of(cls, emission: SymbolEmission) -> Likelihoods:
        return DenseLikelihoods(emission) if emission.support is None else SparseLikelihoods(emission)

    def rows(self, symbols: Tensor) -> Tensor:
        """p(x | z) of one symbol per sequence: [B] -> [B, K]."""
        found = self.emission.potentials(symbols.unsqueeze(0), all_observed=True)
        return found.widen(self.num_states).gather()[0].exp()

    @abstractmethod
    def columns(self, states: Tensor) -> Tensor:
        """p(x | z) of one state per sequence: [B] -> [B, V]."""

    @abstractmethod
    def predictor(self, symbols: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """A function from p(z) [B, K] to sum_z p(z) p(x | z) [B, n], for the given symbols x [n] or for all."""

    @cached_property
    def whole(self) -> Callable[[Tensor], Tensor]:
        """The predictor of all symbols."""
        return self.predictor()

    @cached_property
    def totals(self) -> Tensor:
        """sum of p(x | z) over all symbols: [K]."""
        everything = torch.arange(self.num_symbols, device=self.emission.log_probs(0).device)
        return self.reduced(everything, "sum")

    @abstractmethod
    def reduced(self, symbols: Tensor, reduce: str) -> Tensor:
        """The sum ("sum") or the maximum ("amax") of p(x | z) over some symbols [n]: [K]."""


class DenseLikelihoods(Likelihoods):
    """Likelihoods in which all states can emit all symbols. The table is ordered by state, so that the symbols of a
    state are adjacent in memory."""

    def __init__(self, emission: SymbolEmission) -> None:
        super().__init__(emission)
        self.weights = emission.dense().T.clone(memory_format=torch.contiguous_format).exp_()  # [K, V]

    def columns(self, states: Tensor) -> Tensor:
        return self.weights[states]

    def predictor(self, symbols: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        weights = self.weights if symbols is None else self.weights[:, symbols]
        return lambda probs: few_times(probs, weights)

    def reduced(self, symbols: Tensor, reduce: str) -> Tensor:
        chosen = self.some(symbols) if 4 * len(symbols) < self.num_symbols else self.masked(symbols)
        return torch.cat([piece.sum(-1) if reduce == "sum" else piece.amax(-1) for piece in chosen])

    def some(self, symbols: Tensor) -> Iterator[Tensor]:
        """The columns of a few symbols [n], a part of the states at a time: [k, n]."""
        return (self.weights[part, symbols] for part in chunks(self.num_states, len(symbols)))

    def masked(self, symbols: Tensor) -> Iterator[Tensor]:
        """The whole table with zeros for all other symbols, a part of the states at a time: [k, V]."""
        member = self.weights.new_zeros(self.num_symbols).index_fill_(0, symbols, 1.0)
        return (self.weights[part] * member for part in chunks(self.num_states, self.num_symbols))


class SparseLikelihoods(Likelihoods):
    """Likelihoods in which only k states can emit each symbol: O(V k) in memory and time, not O(V K)."""

    def __init__(self, emission: SymbolEmission) -> None:
        super().__init__(emission)
        symbols = torch.arange(self.num_symbols, device=emission.log_probs(0).device)
        known = emission.potentials(symbols.unsqueeze(0), all_observed=True)
        assert known.ids is not None
        self.weights, self.ids = known.table[known.rows[0]].exp(), known.ids[0]  # [V, k]

    @cached_property
    def by_state(self) -> tuple[Tensor, Tensor, int]:
        """The entries of the table in the order of their states, where each state begins, and the largest number of
        entries of a state: [V k], [K + 1]."""
        order = self.ids.flatten().argsort(stable=True)
        counts = torch.bincount(self.ids.flatten(), minlength=self.num_states)
        return order, torch.nn.functional.pad(counts.cumsum(0), (1, 0)), int(counts.max())

    def columns(self, states: Tensor) -> Tensor:
        order, begins, most = self.by_state
        if not states.is_cuda and len(states):
            most = int((begins[states + 1] - begins[states]).max())
        place = begins[states].unsqueeze(-1) + torch.arange(most, device=states.device)
        inside = place < begins[states + 1].unsqueeze(-1)
        entry = order[place.clamp(max=len(order) - 1)]
        found = self.weights.new_zeros(len(states), self.num_symbols)
        return found.scatter_add_(1, entry // self.ids.shape[1], self.weights.flatten()[entry] * inside)

    def predictor(self, symbols: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        if symbols is None and getattr(self.emission, "partition", None) is not None:
            return self.by_class()
        weights, ids = self.weights, self.ids
        if symbols is not None:
            weights, ids = weights[symbols], ids[symbols]

        def predict(probs: Tensor) -> Tensor:
            pieces = chunks(len(weights), len(probs) * weights.shape[1])
            return torch.cat([torch.einsum("bnk,nk->bn", probs[:, ids[some]], weights[some]) for some in pieces], -1)

        return predict

    def by_class(self) -> Callable[[Tensor], Tensor]:
        """The predictor of all symbols of a partition: one product for each class, whose words share their states."""
        word_class = self.emission.partition.word_class  # type: ignore[attr-defined]
        order = word_class.argsort(stable=True)
        members = [some for some in order.split(torch.bincount(word_class).tolist()) if len(some)]
        parts, place = [(self.ids[some[0]], self.weights[some].T) for some in members], order.argsort()
        return lambda probs: torch.cat([probs[:, ids] @ weights for ids, weights in parts], -1)[:, place]

    def reduced(self, symbols: Tensor, reduce: str) -> Tensor:
        found = self.weights.new_zeros(self.num_states)
        for some in chunks(len(symbols), self.ids.shape[1]):
            rows = symbols[some]
            found.scatter_reduce_(0, self.ids[rows].flatten(), self.weights[rows].flatten(), reduce)
        return found


class Classed:
    """The likelihoods of symbols that are divided into C classes. `classes` holds the class of each symbol: [V].

    Predictions are first computed for all symbols as if they were in the largest class. The predictions for the other
    classes are then computed and inserted. Every function costs O(V k) per sequence."""

    def __init__(self, likelihoods: Likelihoods, classes: np.ndarray, num_classes: int, device: torch.device) -> None:
        self.likelihoods, self.num_classes = likelihoods, num_classes
        counts = np.bincount(classes, minlength=num_classes)
        self.largest = int(counts.argmax())
        others = np.flatnonzero(classes != self.largest)
        others = others[classes[others].argsort(kind="stable")]
        counts[self.largest] = 0
        symbols, self.numbers = together([others, classes[others]], device)
        self.classes = torch.full((len(classes),), self.largest, device=device).index_put((symbols,), self.numbers)
        self.symbols = symbols  # those of the other classes
        self.others = {c: some for c, some in enumerate(symbols.split(counts.tolist())) if len(some)}

    @cached_property
    def rest(self) -> Tensor:
        """The symbols of the largest class."""
        return (self.classes == self.largest).nonzero().squeeze(-1)

    @cached_property
    def parts(self) -> dict[int, Callable[[Tensor], Tensor]]:
        """The predictors of the other classes."""
        return {c: self.likelihoods.predictor(symbols) for c, symbols in self.others.items()}

    def totals(self) -> Tensor:
        """sum of p(x | z) over the symbols of each class: [C, K].

        The sum of the largest class is the total minus the other sums. If this difference is less than half of the
        total, it would be inaccurate, so the sum is computed directly."""
        found = self.few_sums() if len(self.symbols) <= FEW else self.reduced("sum")
        rest = self.likelihoods.totals - found.sum(0)
        if bool((rest < 0.5 * self.likelihoods.totals).any()):
            rest = self.likelihoods.reduced(self.rest, "sum")
        found[self.largest] = rest
        return found

    def few_sums(self) -> Tensor:
        """`reduced` for a few symbols, by one product."""
        rows = self.likelihoods.rows(self.symbols)
        member = self.numbers == torch.arange(self.num_classes, device=rows.device).unsqueeze(-1)
        return member.to(rows.dtype) @ rows

    def best(self) -> Tensor:
        """max of p(x | z) over the symbols of each class: [C, K]."""
        found = self.reduced("amax")
        found[self.largest] = self.likelihoods.reduced(self.rest, "amax")
        return found

    def reduced(self, reduce: str) -> Tensor:
        """The sum or the maximum of p(x | z) over the symbols of each class, zero for the largest class: [C, K]."""
        found = self.likelihoods.totals.new_zeros(self.num_classes, self.likelihoods.num_states)
        for c, symbols in self.others.items():
            found[c] = self.likelihoods.reduced(symbols, reduce)
        return found

    def predict(self, probs: Callable[[int], Tensor], alone: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """sum_z probs(c)[b, z] p(x | z), [B, V], where c is the class of x. The same pass over the symbols also
        computes sum_z alone[n, z] p(x | z): [n, V]."""
        first = probs(self.largest)
        found = self.likelihoods.whole(first if alone is None else torch.cat([first, alone]))
        found, others = found[: len(first)], found[len(first) :]
        for c, predict in self.parts.items():
            found[:, self.others[c]] = predict(probs(c))
        return found, others


def chunks(rows: int, width: int) -> Iterator[slice]:
    size = max(1, ENTRIES // max(1, width))
    return (slice(first, first + size) for first in range(0, rows, size))
