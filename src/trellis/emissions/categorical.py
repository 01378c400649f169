"""Categorical emissions: every state has a distribution over the vocabulary, or over the words it may emit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from trellis.devices import draw_uniform
from trellis.emissions.partition import Partition
from trellis.types import Potentials

ENTRIES = 1 << 26  # of a table that exist at a time


class Categorical:
    """log p(word | state) as a table [V, k]: column i of a word's row belongs to the state support[word, i].

    Without a support (None) every state may emit every word, and column i is state i. Words and states may be parted
    into classes, which then make the support."""

    def __init__(self, table: Tensor, support: Tensor | Partition | None, num_states: int) -> None:
        self.partition = support if isinstance(support, Partition) else None
        self.sets = None if isinstance(support, Partition) else support
        self.table, self.num_states = table, num_states

    @property
    def support(self) -> Tensor | None:
        """[V, k]; None: all states."""
        return self.sets if self.partition is None else self.partition.support

    def potentials(self, tokens: Tensor, all_observed: bool = False) -> Potentials:
        """The potentials of tokens [B, T]; -1 is a missing word, which an `all_observed` text has not."""
        words = tokens if all_observed else tokens.clamp(min=0)
        if self.partition is not None:
            groups = self.partition.groups(self.partition.word_class[words])
            return Potentials(self.table, tokens, groups.sets[groups.rows], groups, all_observed)
        return Potentials(
            self.table, tokens, None if self.sets is None else self.sets[words], all_observed=all_observed
        )

    def collect(self, tokens: Tensor, visits: Tensor) -> Tensor:
        """Expected visits of the rows of the potentials of `tokens`, as EM adds them up: here as they are."""
        return visits

    def only(self, allowed: Tensor) -> Categorical:
        """The same without the words that are not allowed [V] bool; not normalised."""
        table = self.table.masked_fill(~allowed.unsqueeze(-1), -torch.inf)
        return Categorical(table, self.partition or self.sets, self.num_states)

    def log_probs(self, word: int) -> Tensor:
        """log p(word | state) of one word: [K]."""
        if self.support is None:
            return self.table[word]
        full = self.table.new_full((self.num_states,), -torch.inf)
        return full.scatter(-1, self.support[word], self.table[word])

    def predict(self, probs: Tensor) -> Tensor:
        """log p(word) when the state is distributed as probs: [..., K] -> [..., V]."""
        support, weights = self.support, self.table.exp()
        if support is None:
            return (probs @ weights.T).log()
        entries = max(1, probs.numel() // self.num_states) * support.shape[1]
        pieces = zip(*(tensor.split(max(1, ENTRIES // entries)) for tensor in (support, weights)), strict=True)
        return torch.cat([(probs[..., ids] * weight).sum(-1) for ids, weight in pieces], -1).log()

    def dense(self) -> Tensor:
        """log p(word | state) written out: [V, K]."""
        if self.support is None:
            return self.table
        full = self.table.new_full((len(self.table), self.num_states), -torch.inf)
        return full.scatter(-1, self.support, self.table)

    def columns(self, states: Tensor) -> Tensor:
        """log p(word | state) of some states, none of them twice: [n] -> [V, n]."""
        if self.support is None:
            return self.table[:, states]
        place = torch.full((self.num_states,), len(states), device=states.device)
        place[states] = torch.arange(len(states), device=states.device)
        spare = self.table.new_full((len(self.table), len(states) + 1), -torch.inf)  # the last column: all other states
        return spare.scatter(-1, place[self.support], self.table)[:, :-1]

    def by_state(self) -> Iterator[Tensor]:
        """log p(word | state), a few states at a time: [V, n], one after the other."""
        states = torch.arange(self.num_states, device=self.table.device)
        return (self.columns(some) for some in states.split(max(1, ENTRIES // len(self.table))))

    def best(self) -> tuple[Tensor, Tensor]:
        """The log-probability of each state's most probable word, and that word: [K], [K]."""
        values, words = zip(*(some.max(0) for some in self.by_state()), strict=True)
        return torch.cat(values), torch.cat(words)

    def log_totals(self) -> Tensor:
        """log sum over words of p(word | state), zero unless words were taken away: [K]."""
        return torch.cat([some.logsumexp(0) for some in self.by_state()])

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One word from each state: [...] -> [...]."""
        needed, position = states.flatten().unique(return_inverse=True)
        uniform = draw_uniform(position.shape, states.device, generator)
        cumulative = self.columns(needed).T.double().exp().cumsum(-1)  # [states needed, V]
        total = cumulative[:, -1:]
        ladder = (cumulative / total + torch.arange(len(needed), device=states.device)[:, None]).flatten()
        words = torch.searchsorted(ladder, uniform + position, right=True) - position * len(self.table)
        last = (cumulative < total).sum(-1)  # the last word of positive probability
        return torch.minimum(words, last[position]).view(states.shape)
