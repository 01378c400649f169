"""The parameterisation p(z' | z) = s_z [z' = z] + (1 - s_z) softmax(logits_z)[z'], trained by gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sticky_options import StickyOptions
from torch import Tensor, nn

from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters import Draw, Support, WordParams
from trellis.families.hmm.parameters.base import WHOLE, normalised, restored_support
from trellis.models.restoring import rebuilt
from trellis.parts import Parts
from trellis.transitions import Dense


class StickyParams(WordParams):
    """Logits of start [K], staying [K], moving [K, K] and words [V, k]."""

    kind = "sticky"
    Options = StickyOptions

    def __init__(self, states: int, words: int, support: Support = None, stay: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        self.num_states = states
        self.set_support(support)
        sets = support if self.partition is None else self.partition.support
        generator = torch.Generator().manual_seed(seed)
        shapes = {"start": (states,), "moves": (states, states)}
        shapes["words"] = (words, states if sets is None else sets.shape[1])
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.stay = nn.Parameter(torch.full((states,), stay).logit())

    @classmethod
    def new(cls, words: Sequence[str], config: HMMConfig, support: Support, seed: int) -> StickyParams:
        return cls(config.states, len(words), support, cls.options(config).stay, seed)

    def parts(self, draw: Draw = WHOLE) -> Parts:
        stay = self.stay.sigmoid().unsqueeze(-1)
        matrix = stay * torch.eye(self.num_states).to(stay) + (1 - stay) * self.moves.softmax(-1)
        emission = normalised(self.words, self.partition or self.support, self.num_states)
        return Parts(self.start.softmax(-1), Dense(matrix), emission)

    @torch.no_grad()
    def shift_word_logits(self, scores: Tensor) -> None:
        self.words.add_(scores.unsqueeze(-1))

    @classmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> StickyParams:
        support = restored_support(tensors, len(words), settings["states"])
        return rebuilt(lambda: cls(settings["states"], len(words), support), tensors)
