"""Emission: the interface of p(x | z) for inference and learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from trellis.devices import Draws, draw_uniform
from trellis.errors import TrellisError
from trellis.types import Potentials

ENTRIES = 1 << 26  # table entries in memory at a time


class Vectors(NamedTuple):
    """Real-valued observations. Sequence b has the observation values[rows[b, t]] at step t, or none if rows[b, t] is
    -1."""

    values: Tensor  # [n, F]
    rows: Tensor  # [B, T] int64


class Top(NamedTuple):
    """The most probable symbols of each state, in descending order of probability."""

    values: Tensor  # [K, n]: log p(symbol | state)
    indices: Tensor  # [K, n]: the symbols; -1 where the state cannot emit so many


class Emission(ABC):
    """p(x | z) for K states. Observations are a tensor, or a named tuple of tensors; `potentials` and `statistics`
    take them in the same form."""

    num_states: int
    statistics_axis = 0  # the dimension of the statistics that runs over states

    @property
    def per_state(self) -> Mapping[str, int]:
        """The names of the attributes with an entry for each state, and the dimension of each that runs over states. If
        there are none, emissions of this type cannot be tied or frozen."""
        return {}

    @abstractmethod
    def potentials(self, observations: Any, all_observed: bool = False) -> Potentials:
        """log p(x_t | z) of every step. `all_observed` promises that no observation is missing. Must not synchronise
        with the device."""

    @abstractmethod
    def statistics(self, observations: Any, visits: Tensor) -> Tensor:
        """Sufficient statistics, computed from `visits`. They are one tensor that can be added and scaled; the emission
        chooses its layout.

        Row n of `visits` [N, k] belongs to row n of the potentials' table, that is, to one observation, which several
        steps may share. It holds, for each of the k states of that row, the expected number of times that the state
        emits this observation."""

    @abstractmethod
    def maximised(self, statistics: Tensor, prior: Any) -> Self:
        """The M-step: the MAP emission given statistics and a prior (for symbols, a pseudocount)."""

    def consuming(self, statistics: Tensor, prior: Any) -> Self:
        """`maximised` for statistics that are not needed any more: the result may be written over them."""
        return self.maximised(statistics, prior)

    @abstractmethod
    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Sample one observation from each state: [...] -> [..., *]."""

    def take(self, states: Tensor) -> Self:
        """A copy with the given states [n]: new state i is old state states[i]."""
        found = {name: value.index_select(self.per_state[name], states) for name, value in self._by_state()}
        return self._with(found, len(states))

    def keeping(self, frozen: Tensor, old: Self) -> Self:
        """A copy of this emission in which the states marked by `frozen` [K] have the parameters of `old`."""
        ids, kept = frozen.nonzero().squeeze(-1), {}
        for name, value in self._by_state():
            axis = self.per_state[name]
            kept[name] = value.index_copy(axis, ids, getattr(old, name).index_select(axis, ids))
        return self._with(kept, self.num_states)

    def _by_state(self) -> Iterator[tuple[str, Tensor]]:
        if not self.per_state:
            raise TrellisError(f"{type(self).__name__} emissions cannot be tied or frozen: define their `per_state`.")
        return ((name, getattr(self, name)) for name in self.per_state)

    def _with(self, tensors: Mapping[str, Tensor], num_states: int) -> Self:
        """A copy in which the given attributes are replaced."""
        kind, found = type(self), object.__new__(type(self))
        kept = {k: v for k, v in vars(self).items() if not isinstance(getattr(kind, k, None), cached_property)}
        found.__dict__.update(kept, **tensors, num_states=num_states)
        return found


class SymbolEmission(Emission):
    """p(x | z) over V symbols: tokens [B, T], -1 where missing.

    A subclass must define only `dense`, its statistics and its M-step. A subclass that should never form the table [V,
    K] overrides the other methods too."""

    @abstractmethod
    def dense(self) -> Tensor:
        """log p(symbol | state): [V, K]."""

    @property
    def num_symbols(self) -> int:
        return len(self.dense())

    @property
    def has_support(self) -> bool:
        """Whether there is a `support`, that is, whether some state cannot emit some symbol."""
        return False

    @property
    def support(self) -> Tensor | None:
        """The states that can emit each symbol, [V, k]; None if all states can."""
        return None

    def potentials(self, observations: Tensor, all_observed: bool = False) -> Potentials:
        return Potentials(self.dense(), observations, all_observed=all_observed)

    def predict(self, probs: Tensor) -> Tensor:
        """log p(symbol) under a distribution over states: [..., K] -> [..., V]."""
        return (probs @ self.dense().exp().T).log()

    def columns(self, states: Tensor) -> Tensor:
        """log p(symbol | state) of distinct states: [n] -> [V, n]."""
        return self.dense()[:, states]

    def log_probs(self, symbol: int) -> Tensor:
        """log p(symbol | state) of one symbol: [K]."""
        return self.dense()[symbol]

    def by_state(self) -> Iterator[Tensor]:
        """log p(symbol | state) for chunks of states: [V, n] each."""
        states = torch.arange(self.num_states, device=self.log_probs(0).device)
        return (self.columns(some) for some in states.split(max(1, ENTRIES // self.num_symbols)))

    def best(self) -> tuple[Tensor, Tensor]:
        """The log-probability of each state's most probable symbol, and that symbol: [K], [K]."""
        values, words = zip(*(some.max(0) for some in self.by_state()), strict=True)
        return torch.cat(values), torch.cat(words)

    def top(self, n: int) -> Top:
        """The n most probable symbols of each state; fewer if there are fewer symbols."""
        found = [some.T.topk(min(n, len(some))) for some in self.by_state()]
        values, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Top(values, indices.masked_fill(values == -torch.inf, -1))

    def only(self, allowed: Tensor) -> SymbolEmission:
        """The same emission over the allowed symbols only ([V] bool), without renormalisation."""
        from trellis.emissions.categorical import Categorical

        return Categorical(self.dense().masked_fill(~allowed.unsqueeze(-1), -torch.inf), None, self.num_states)

    def log_totals(self) -> Tensor:
        """log sum_x p(x | state) over all symbols x: [K]. Zero, unless `only` has removed symbols."""
        return torch.cat([some.logsumexp(0) for some in self.by_state()])

    def sample(self, states: Tensor, generator: torch.Generator | Draws | None = None) -> Tensor:
        needed, position = states.flatten().unique(return_inverse=True)
        uniform = draw_uniform(position.shape, states.device, generator)
        cumulative = self.columns(needed).T.double().exp().cumsum(-1)  # [states needed, V]
        total = cumulative[:, -1:]
        ladder = (cumulative / total + torch.arange(len(needed), device=states.device)[:, None]).flatten()
        words = torch.searchsorted(ladder, uniform + position, right=True) - position * cumulative.shape[1]
        last = (cumulative < total).sum(-1)  # the last symbol of positive probability
        return torch.minimum(words, last[position]).view(states.shape)
