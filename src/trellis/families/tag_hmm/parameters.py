"""States that say tags beside words: any parameterization of an HMM, and a table of tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trellis.config import ModelConfig
from trellis.emissions import Partition, Product
from trellis.emissions.categorical import Categorical
from trellis.errors import TrellisError
from trellis.params.base import NOTHING, Params, Support
from trellis.params.dropout import Dropped
from trellis.params.table import LOG_ZERO, TableParams, replace
from trellis.transitions import Transition
from trellis.types import Counts

INNER = "words."


class TaggedParams(Params):
    """p(x | z) and all else by `words`; p(y | z) by logits [Y, K].

    A word x of the kind kinds[x] (-1: of none) is taken, in every M-step, to have been seen `backing` more times, in
    the states in which its kind was."""

    kind = "tagged"
    kinds: Tensor  # [V]

    def __init__(self, words: Params, num_tags: int, kinds: Tensor, backing: float = 0.0, hard: bool = False) -> None:
        super().__init__()
        self.words, self.backing, self.hard = words, backing, hard
        self.num_states, self.num_features, self.counted = words.num_states, words.num_features, words.counted
        self.tag_logits = nn.Parameter(torch.zeros(num_tags, words.num_states), requires_grad=not hard)
        self.register_buffer("kinds", kinds)

    @torch.no_grad()
    def assign(self, tags: Tensor, sureness: float) -> None:
        """Let each state begin with a tag [K] of its own, by so much above the others; hard: with no other, ever."""
        self.tag_logits.fill_(LOG_ZERO if self.hard else -sureness)
        self.tag_logits.scatter_(0, tags[None], 0.0)

    @classmethod
    def new(cls, words: Sequence[str], config: ModelConfig, support: Support, seed: int) -> TaggedParams:
        raise TrellisError("Tagged parameters stand on others: make them by TagHMM.build.")

    @property
    def partition(self) -> Partition | None:  # type: ignore[override]
        return self.words.partition

    @property
    def support(self) -> Tensor | None:  # type: ignore[override]
        return self.words.support

    def shift_word_logits(self, scores: Tensor) -> None:
        self.words.shift_word_logits(scores)

    def start(self, dropped: Dropped = NOTHING) -> Tensor:
        return self.words.start(dropped)

    def transition(self, dropped: Dropped = NOTHING) -> Transition:
        return self.words.transition(dropped)

    def emission(self, dropped: Dropped = NOTHING) -> Product:
        return self.with_tags(self.words.emission(dropped), dropped)

    def moving(self, dropped: Dropped = NOTHING) -> tuple[Transition, Product]:
        transition, words = self.words.moving(dropped)
        return transition, self.with_tags(words, dropped)

    def with_tags(self, words: Categorical, dropped: Dropped) -> Product:
        logits = self.tag_logits if dropped.ids is None else self.tag_logits[:, dropped.ids]
        return Product(words, logits.log_softmax(0).masked_fill(logits <= LOG_ZERO, -torch.inf))

    def entry(self, ids: Tensor, dropped: Dropped) -> Transition:
        return self.words.entry(ids, dropped)

    @torch.no_grad()
    def maximise(self, counts: Counts, pseudocount: float = 0.0) -> None:
        """The M-step, of words and tags apart."""
        assert isinstance(self.words, TableParams)
        words, tags = self.emission().apart(counts.emission)
        self.words.maximise(counts._replace(emission=self.backed(words)), pseudocount)
        if not self.hard:
            self.maximise_tags(tags, pseudocount)

    @torch.no_grad()
    def maximise_tags(self, counts: Tensor, pseudocount: float = 0.0) -> None:
        """p(y | z) out of counts [Y, K]."""
        replace(self.tag_logits, counts + pseudocount, (counts + pseudocount).sum(0))

    def backed(self, visits: Tensor) -> Tensor:
        """The visits of words [V, k], and `backing` more for each as its kind's are shared out."""
        if not self.backing:
            return visits
        shares = visits / visits.sum(1, keepdim=True).clamp(min=torch.finfo(visits.dtype).tiny)
        known = (self.kinds >= 0) & self.alike()
        return visits + self.backing * shares[self.kinds.clamp(min=0)] * known.unsqueeze(1)

    def alike(self) -> Tensor:
        """Whether a word and its kind have the same states, in the same order: [V] bool."""
        kinds, words = self.kinds.clamp(min=0), self.words
        if words.partition is not None:
            return words.partition.word_class == words.partition.word_class[kinds]
        if words.support is not None:
            return (words.support == words.support[kinds]).all(1)
        return torch.ones_like(kinds, dtype=torch.bool)

    def settings(self) -> dict[str, Any]:
        return {"words": self.words.settings(), "backing": self.backing, "hard": self.hard}

    @classmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> TaggedParams:
        from trellis.params import PARAMS  # the kinds of parameters that this one may be built on

        inner = {name.removeprefix(INNER): value for name, value in tensors.items() if name.startswith(INNER)}
        base = PARAMS[settings["words"]["params"]].restore(words, settings["words"], inner)
        logits, kinds = tensors["tag_logits"], tensors["kinds"]
        params = cls(base, len(logits), kinds, float(settings["backing"]), bool(settings["hard"])).to(logits.dtype)
        params.tag_logits.data.copy_(logits)
        return params
