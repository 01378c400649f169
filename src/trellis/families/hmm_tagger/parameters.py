"""Parameters of words and tags: any parameterisation of words, plus a table p(tag | state)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trellis.dirichlet import most_probable
from trellis.emissions import Partition, Product
from trellis.families.hmm.parameters import Draw, SavedParams
from trellis.families.hmm.parameters.base import WHOLE, find_params
from trellis.families.hmm.parameters.table import LOG_ZERO, Tables, set_log
from trellis.learning.base import Maximisable
from trellis.models.restoring import check_shapes
from trellis.parts import Parts, Prior
from trellis.types import Counts

INNER = "words."


class TaggedParams(SavedParams):
    """Parameters of the chain and of p(x | z) (`words`), and logits [Y, K] of p(tag y | z). kinds[x] is the spelling
    class of word x, or -1."""

    kind = "tagged"
    kinds: Tensor  # [V]

    def __init__(self, words: SavedParams, num_tags: int, kinds: Tensor, backoff: float = 0.0, hard: bool = False):
        super().__init__()
        self.words, self.backoff, self.hard = words, backoff, hard
        self.num_states, self.num_features = words.num_states, words.num_features
        self.tag_logits = nn.Parameter(torch.zeros(num_tags, words.num_states), requires_grad=not hard)
        self.register_buffer("kinds", kinds)

    @torch.no_grad()
    def assign(self, tags: Tensor, sureness: float) -> None:
        """Initialise each state to its tag in `tags` [K], by raising that logit. If `hard`, it can emit no other
        tag."""
        self.tag_logits.fill_(LOG_ZERO if self.hard else -sureness)
        self.tag_logits.scatter_(0, tags[None], 0.0)

    @property
    def partition(self) -> Partition | None:  # type: ignore[override]
        return self.words.partition

    @property
    def support(self) -> Tensor | None:  # type: ignore[override]
        return self.words.support

    def parts(self, draw: Draw = WHOLE) -> Parts:
        parts = self.words.parts(draw)
        logits = self.tag_logits if draw.ids is None else self.tag_logits[:, draw.ids]
        tags = logits.log_softmax(0).masked_fill(logits <= LOG_ZERO, -torch.inf)
        return parts.with_emission(Product(parts.emission, tags))

    @torch.no_grad()
    def maximise_tags(self, counts: Tensor, pseudocount: float = 0.0) -> None:
        """The M-step of p(y | z), from counts [Y, K]."""
        old = self.tag_logits.softmax(0)
        set_log(self.tag_logits, most_probable(counts, pseudocount, old, dim=0, keep_zeros=False))

    def settings(self) -> dict[str, Any]:
        return {"words": self.words.settings(), "backoff": self.backoff, "hard": self.hard}

    @classmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> TaggedParams:
        inner = {name.removeprefix(INNER): value for name, value in tensors.items() if name.startswith(INNER)}
        base = find_params(settings["words"]["params"]).restore(words, settings["words"], inner)
        logits, kinds = tensors["tag_logits"], tensors["kinds"]
        check_shapes({"tag_logits": (len(logits), base.num_states)}, {"tag_logits": logits})
        params = with_tags(base, len(logits), kinds, float(settings["backoff"]), bool(settings["hard"]))
        params.to(logits.dtype).tag_logits.data.copy_(logits)
        return params


class TaggedTables(TaggedParams, Maximisable):
    """Tables of words and tags. The M-step adds `backoff` pseudocounts to each word, distributed over states like the
    counts of its spelling class."""

    words: Tables

    @torch.no_grad()
    def maximise(self, counts: Counts, prior: Prior) -> None:
        words, tags = self.parts().emission.split_statistics(counts.emission)
        super().maximise(counts._replace(emission=torch.cat([self.backed(words).flatten(), tags.flatten()])), prior)

    def write(self, parts: Parts) -> None:
        self.words.write(parts)
        if not self.hard:
            self.tag_logits.data.copy_(parts.emission.tags.clamp(min=LOG_ZERO))

    def backed(self, visits: Tensor) -> Tensor:
        """The expected counts of words [V, k], plus `backoff` each, distributed like those of its spelling class."""
        if not self.backoff:
            return visits
        shares = visits / visits.sum(1, keepdim=True).clamp(min=torch.finfo(visits.dtype).tiny)
        known = (self.kinds >= 0) & self.alike()
        return visits + self.backoff * shares[self.kinds.clamp(min=0)] * known.unsqueeze(1)

    def alike(self) -> Tensor:
        """Whether a word and its spelling class have the same states, in the same order: [V] bool."""
        kinds, words = self.kinds.clamp(min=0), self.words
        if words.partition is not None:
            return words.partition.word_class == words.partition.word_class[kinds]
        if words.support is not None:
            return (words.support == words.support[kinds]).all(1)
        return torch.ones_like(kinds, dtype=torch.bool)


def with_tags(
    words: SavedParams, num_tags: int, kinds: Tensor, backoff: float = 0.0, hard: bool = False
) -> TaggedParams:
    """Add tags to the parameters of words. The result has an M-step if the parameters of words have one."""
    kind = TaggedTables if isinstance(words, Tables) else TaggedParams
    return kind(words, num_tags, kinds, backoff, hard)
