"""Categorical emissions: every state has a distribution over the vocabulary, or over the words it may emit."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.types import Potentials


class Categorical:
    """log p(word | state) as a table [V, k]: column i of a word's row belongs to the state support[word, i].

    Without a support (None) every state may emit every word, and column i is state i."""

    def __init__(self, table: Tensor, support: Tensor | None, num_states: int) -> None:
        self.table, self.support, self.num_states = table, support, num_states

    def potentials(self, tokens: Tensor) -> Potentials:
        """The potentials of tokens [B, T]; -1 is a missing word."""
        ids = None if self.support is None else self.support[tokens.clamp(min=0)]
        return Potentials(self.table, tokens, ids)

    def predict(self, probs: Tensor) -> Tensor:
        """log p(word) when the state is distributed as probs: [..., K] -> [..., V]."""
        if self.support is None:
            return (probs @ self.table.exp().T).log()
        return (probs[..., self.support] * self.table.exp()).sum(-1).log()

    def dense(self) -> Tensor:
        """log p(word | state) written out: [V, K]."""
        if self.support is None:
            return self.table
        full = self.table.new_full((len(self.table), self.num_states), -torch.inf)
        return full.scatter(-1, self.support, self.table)

    def best(self) -> tuple[Tensor, Tensor]:
        """The log-probability of each state's most probable word, and that word: [K], [K]."""
        return self.dense().max(0)

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One word from each state: [...] -> [...]."""
        needed, position = states.flatten().unique(return_inverse=True)
        uniform = torch.rand(len(position), generator=generator, dtype=torch.float64, device=states.device)
        cumulative = self.dense()[:, needed].T.double().exp().cumsum(-1)  # [states needed, V]
        total = cumulative[:, -1:]
        ladder = (cumulative / total + torch.arange(len(needed), device=states.device)[:, None]).flatten()
        words = torch.searchsorted(ladder, uniform + position, right=True) - position * len(self.table)
        last = (cumulative < total).sum(-1)  # the last word of positive probability
        return torch.minimum(words, last[position]).view(states.shape)
