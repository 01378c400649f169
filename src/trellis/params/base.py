"""What every parameterization gives: the parts of an HMM, whole or as a draw of dropout leaves them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trellis.config import ModelConfig
from trellis.emissions import Categorical, Partition
from trellis.errors import TrellisError
from trellis.kernels.classes import class_log_softmax
from trellis.kernels.rows import take
from trellis.params.dropout import Dropped
from trellis.transitions import Transition
from trellis.types import Counts

NOTHING = Dropped()
Support = Tensor | Partition | None


class Params(nn.Module, ABC):
    """K states and V words; the states of each word are all (None), listed [V, k], or those of its class."""

    kind: ClassVar[str]
    support: Tensor | None
    partition: Partition | None
    num_states: int
    num_features: int = 0  # that transitions go through, where they do
    counted: bool = False  # whether they have an M-step

    @classmethod
    @abstractmethod
    def new(cls, words: Sequence[str], config: ModelConfig, support: Support, seed: int) -> Params:
        """Untrained parameters."""

    @abstractmethod
    def shift_word_logits(self, scores: Tensor) -> None:
        """Make words more probable in every state, by scores [V] that are added to their logits."""

    def set_support(self, support: Support) -> None:
        self.partition = support if isinstance(support, Partition) else None
        self.register_buffer("support", None if isinstance(support, Partition) else support)

    @abstractmethod
    def start(self, dropped: Dropped = NOTHING) -> Tensor:
        """p(z_0): [K]."""

    @abstractmethod
    def transition(self, dropped: Dropped = NOTHING) -> Transition:
        """p(z' | z)."""

    @abstractmethod
    def emission(self, dropped: Dropped = NOTHING) -> Categorical:
        """p(x | z)."""

    def moving(self, dropped: Dropped = NOTHING) -> tuple[Transition, Categorical]:
        """Both at once, where they share work."""
        return self.transition(dropped), self.emission(dropped)

    @abstractmethod
    def entry(self, ids: Tensor, dropped: Dropped) -> Transition:
        """Transitions from the states `ids` [R], of the whole model, into those that a draw keeps: a
        rectangular operator, for `forward` and `blocks` alone."""

    def maximise(self, counts: Counts, pseudocount: float = 0.0) -> None:
        """The M-step: probabilities proportional to expected counts, where parameters are `counted`."""
        raise TrellisError(f"{self.kind} parameters have no M-step: learn them by gradients.")

    def settings(self) -> dict[str, Any]:
        """What, with the tensors, makes these parameters again: JSON values."""
        return {"params": self.kind, "states": self.num_states}

    @classmethod
    @abstractmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> Params:
        """The parameters that `settings` and `tensors` came from."""


def restored_support(tensors: Mapping[str, Tensor]) -> Support:
    """The support that a state dict speaks of."""
    if "partition.sizes" in tensors:
        return Partition(tensors["partition.word_class"], tensors["partition.sizes"].tolist())
    return tensors.get("support")


def add_by_state(logits: Tensor, support: Tensor, num_states: int) -> Tensor:
    """logsumexp over all entries [V, k] that belong to each state: [K]; -inf for a state without words."""
    top = torch.full((num_states,), -torch.inf, dtype=logits.dtype, device=logits.device)
    top = top.scatter_reduce(0, support.flatten(), logits.detach().flatten(), "amax")
    shift = top.masked_fill(top == -torch.inf, 0.0)
    scaled = (logits - take(shift, support)).exp().flatten()
    return torch.zeros_like(top).scatter_add(0, support.flatten(), scaled).log() + shift


def normalised(logits: Tensor, support: Support, num_states: int) -> Categorical:
    """log p(x | z) out of logits [V, k], each state over the words that it may emit."""
    if support is None:
        return Categorical(logits - logits.logsumexp(0), None, num_states)  # torch's softmax over columns is slow
    if isinstance(support, Partition):
        allowed = support.allowed
        logits = logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)
        return Categorical(
            class_log_softmax(logits, support.word_class, support.words, support.begins), support, num_states
        )
    return Categorical(logits - take(add_by_state(logits, support, num_states), support), support, num_states)
