"""Words with tags, conditionally independent given the state: p(x, y | z) = p(x | z) p(y | z)."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.emissions.categorical import Categorical
from trellis.kernels.rows import take
from trellis.types import Potentials


class Product(Categorical):
    """An emission of V words with Y tags: a `Categorical` over words, and log p(tag | state) [Y, K].

    Word x with tag y is the symbol x + V (y + 1). Word x without a tag is the symbol x; its tag is marginalised. -1 is
    a missing word. The statistics are expected visits of (word, state) [V, k] and of (tag, state) [Y, K], flattened
    and concatenated."""

    def __init__(self, words: Categorical, tags: Tensor) -> None:
        super().__init__(words.table, words.partition or words.sets, words.num_states)
        self.tags = tags

    def split(self, symbols: Tensor) -> tuple[Tensor, Tensor]:
        """The word of each symbol, and the number of its tag plus 1, or 0 if it has no tag."""
        tags, words = symbols.clamp(min=0) // len(self.table), symbols % len(self.table)
        return words.masked_fill(symbols < 0, -1), tags

    def potentials(self, observations: Tensor, all_observed: bool = False) -> Potentials:
        words, tags = self.split(observations)
        spoken = super().potentials(words, all_observed)
        return self.joined(spoken, torch.cat([torch.zeros_like(self.tags[:1]), self.tags]), tags)

    def joined(self, spoken: Potentials, table: Tensor, rows: Tensor) -> Potentials:
        """Add rows of the table [R, K] to the potentials of words. The result has one row per step."""
        if spoken.ids is None:
            added = take(table, rows)
        else:
            added = take(table.flatten(), rows.unsqueeze(-1) * self.num_states + spoken.ids)
        steps = Potentials.of(spoken.gather() + added)
        return spoken._replace(table=steps.table, rows=steps.rows.masked_fill(spoken.rows < 0, -1))

    def best_tags(self, symbols: Tensor, allowed: slice = slice(None)) -> tuple[Potentials, Tensor]:
        """The potentials max_y p(x, y | z) of words, with the maximum over the allowed tags, and the best tag of each
        state: [K]."""
        words, _ = self.split(symbols)
        best, which = self.tags[allowed].max(0)
        spoken = super().potentials(words)
        return self.joined(spoken, best[None], torch.zeros_like(words)), which + (allowed.start or 0)

    def statistics(self, observations: Tensor, visits: Tensor) -> Tensor:
        words, rows = (part.flatten() for part in self.split(observations))
        words = words.clamp(min=0)
        states = torch.arange(self.num_states, device=visits.device) if self.support is None else self.support[words]
        places = (rows.unsqueeze(-1) * self.num_states + states).flatten()
        by_word = visits.new_zeros(self.table.shape).index_add_(0, words, visits)
        by_tag = visits.new_zeros((len(self.tags) + 1) * self.num_states).index_add_(0, places, visits.flatten())
        return torch.cat([by_word.flatten(), by_tag[self.num_states :]])

    def split_statistics(self, statistics: Tensor) -> tuple[Tensor, Tensor]:
        """The statistics of words [V, k] and of tags [Y, K]."""
        by_word, by_tag = statistics.split([self.table.numel(), self.tags.numel()])
        return by_word.view(self.table.shape), by_tag.view(self.tags.shape)

    def maximised(self, statistics: Tensor, prior: float | Tensor) -> Product:
        words, tags = self.split_statistics(statistics)
        probs = most_probable(tags, prior, self.tags.exp(), dim=0, keep_zeros=False)
        return Product(super().maximised(words, prior), probs.log())
