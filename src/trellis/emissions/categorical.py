"""Categorical emissions: each state has a distribution over the vocabulary, or over the words that it can emit."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from trellis.emissions.base import ENTRIES, SymbolEmission, Top
from trellis.emissions.partition import Partition
from trellis.kernels import estimates
from trellis.types import Potentials


class Categorical(SymbolEmission):
    """log p(word | state) as a table [V, k]. Column i in the row of a word refers to the state support[word, i].

    Without a support (None) every state can emit every word, and column i is state i. A partition of words and states
    into classes also defines a support. The statistics are expected visits [V, k]."""

    statistics_axis = 1

    def __init__(self, table: Tensor, support: Tensor | Partition | None, num_states: int) -> None:
        self.partition = support if isinstance(support, Partition) else None
        self.sets = None if isinstance(support, Partition) else support
        self.table, self.num_states = table, num_states

    @property
    def per_state(self) -> dict[str, int]:
        return {} if self.has_support else {"table": 1}

    @property
    def has_support(self) -> bool:
        return self.partition is not None or self.sets is not None

    @property
    def support(self) -> Tensor | None:
        return self.sets if self.partition is None else self.partition.support

    @property
    def num_symbols(self) -> int:
        return len(self.table)

    def potentials(self, observations: Tensor, all_observed: bool = False) -> Potentials:
        if not self.has_support:
            return Potentials(self.table, observations, all_observed=all_observed)
        words = observations if all_observed else observations.clamp(min=0)
        if self.partition is not None:
            groups = self.partition.groups(self.partition.word_class[words])
            return Potentials(self.table, observations, groups.sets[groups.rows], groups, all_observed)
        assert self.sets is not None
        return Potentials(self.table, observations, self.sets[words], all_observed=all_observed)

    def statistics(self, observations: Tensor, visits: Tensor) -> Tensor:
        return visits

    def maximised(self, statistics: Tensor, prior: float | Tensor) -> Categorical:
        """The MAP distribution of each state over the words it can emit; the pseudocount is a scalar or [V, k].

        Unlike those of transitions, probabilities of zero can become positive, within the support."""
        support = self.support
        if support is None and (kernels := estimates.fused(statistics, prior, self.table)):
            return self.with_table(kernels.log_columns(statistics, prior, self.table))
        weights = (statistics + prior).clamp(min=0)
        allowed = None if self.partition is None else self.partition.allowed
        weights = weights if allowed is None else weights * allowed
        total = weights.sum(0) if support is None else totals_by_state(weights, support, self.num_states)[support]
        return self.with_table(torch.where(total > 0, weights.log() - total.log(), self.table))

    def consuming(self, statistics: Tensor, prior: float | Tensor) -> Categorical:
        inherited = type(self).maximised is Categorical.maximised and not self.has_support
        if inherited and (kernels := estimates.overwritten(statistics, prior, self.table)):
            return self.with_table(kernels.log_columns(statistics, prior, self.table, out=statistics))
        return self.maximised(statistics, prior)

    def with_table(self, table: Tensor) -> Self:
        """A copy with another table."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__, table=table)
        return found

    def only(self, allowed: Tensor) -> Categorical:
        table = self.table.masked_fill(~allowed.unsqueeze(-1), -torch.inf)
        return Categorical(table, self.partition or self.sets, self.num_states)

    def log_probs(self, symbol: int) -> Tensor:
        if not self.has_support:
            return self.table[symbol]
        full = self.table.new_full((self.num_states,), -torch.inf)
        return full.scatter(-1, self.states_of(symbol), self.table[symbol])

    def states_of(self, symbol: int) -> Tensor:
        """The states that can emit a symbol, if there is a support: [k]."""
        if self.partition is not None:
            return self.partition.windows[self.partition.word_class[symbol]]
        assert self.sets is not None
        return self.sets[symbol]

    def top(self, n: int) -> Top:
        if self.partition is None:
            return super().top(n)
        words, begins, first = self.partition.words, self.partition.begins.tolist(), 0
        shape = self.num_states, min(n, self.num_symbols)
        found = Top(self.table.new_full(shape, -torch.inf), words.new_full(shape, -1))
        for begin, end, size in zip(begins, begins[1:], self.partition.counts, strict=False):
            best = self.table[words[begin:end], :size].topk(min(n, end - begin), 0)
            own = slice(first, first + size), slice(len(best.values))
            found.values[own] = best.values.T
            found.indices[own] = words[begin:end][best.indices].masked_fill(best.values == -torch.inf, -1).T
            first += size
        return found

    def log_totals(self) -> Tensor:
        support, weights = self.support, self.table.double().exp()
        totals = weights.sum(0) if support is None else totals_by_state(weights, support, self.num_states)
        return totals.log().to(self.table.dtype)

    def predict(self, probs: Tensor) -> Tensor:
        support, weights = self.support, self.table.exp()
        if support is None:
            return (probs @ weights.T).log()
        entries = max(1, probs.numel() // self.num_states) * support.shape[1]
        pieces = zip(*(tensor.split(max(1, ENTRIES // entries)) for tensor in (support, weights)), strict=True)
        return torch.cat([(probs[..., ids] * weight).sum(-1) for ids, weight in pieces], -1).log()

    def dense(self) -> Tensor:
        if self.support is None:
            return self.table
        full = self.table.new_full((len(self.table), self.num_states), -torch.inf)
        return full.scatter(-1, self.support, self.table)

    def columns(self, states: Tensor) -> Tensor:
        if self.support is None:
            return self.table[:, states]
        place = torch.full((self.num_states,), len(states), device=states.device)
        place[states] = torch.arange(len(states), device=states.device)
        spare = self.table.new_full((len(self.table), len(states) + 1), -torch.inf)  # last column: all other states
        return spare.scatter(-1, place[self.support], self.table)[:, :-1]


def totals_by_state(values: Tensor, support: Tensor, num_states: int) -> Tensor:
    """Sum the entries [V, k] by state: [K]."""
    return values.new_zeros(num_states).scatter_add(0, support.flatten(), values.flatten())
