"""The parameterisation `model.params = "ring"`, trained by EM or by gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ring import Ring
from torch import Tensor, nn

from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters.base import Support, restored_support
from trellis.families.hmm.parameters.dropout import Draw
from trellis.families.hmm.parameters.table import Tables, set_log
from trellis.models.restoring import rebuilt
from trellis.options import Options, option
from trellis.transitions import DenseEntry


@dataclass(frozen=True)
class RingOptions(Options):
    reach: int = option(2, "number of states that can follow a state, itself included", within="[1, inf)")


class RingParams(Tables):
    """Logits of the jumps [J]. The logits of start and words are inherited from `Tables`."""

    kind = "ring"
    Options = RingOptions
    jump_logits: nn.Parameter

    def __init__(self, states: int, words: int, support: Support = None, reach: int = 2, seed: int = 0) -> None:
        self.reach = min(reach, states)
        super().__init__(states, words, support, seed=seed)

    @classmethod
    def new(cls, words: Sequence[str], config: HMMConfig, support: Support, seed: int) -> RingParams:
        return cls(config.states, len(words), support, cls.options(config).reach, seed)

    def transition_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"jump_logits": (self.reach,)}

    def transition(self, draw: Draw) -> Ring:
        return Ring(self.jump_logits.softmax(-1), self.num_states)

    def entry(self, ids: Tensor, draw: Draw) -> DenseEntry:
        return DenseEntry(self.transition(draw).rows(ids))

    def write_transition(self, transition: Ring) -> None:
        set_log(self.jump_logits, transition.jumps)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"reach": self.reach}

    @classmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> RingParams:
        support = restored_support(tensors, len(words), settings["states"])
        return rebuilt(lambda: cls(settings["states"], len(words), support, settings["reach"]), tensors)
