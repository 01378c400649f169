"""The interface of all parameterisations: the parts of an HMM, for the full model or a dropout sample of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from trellis.emissions import Categorical, Partition
from trellis.errors import TrellisError
from trellis.extensions import PARAMETERS, entries
from trellis.families.hmm.config import PARAMS, HMMConfig
from trellis.families.hmm.parameters.dropout import Draw
from trellis.kernels.classes import class_log_softmax
from trellis.kernels.rows import take
from trellis.models.restoring import check_indices
from trellis.options import Options, choose, parse_options
from trellis.parts import Parts
from trellis.registry import resolve

WHOLE = Draw()  # no dropout
Support = Tensor | Partition | None


class Params(nn.Module, ABC):
    """Parameters of K states and V words. A word can be emitted by all states, by the k states in its row of `support`
    [V, k], or by the states of its class."""

    support: Tensor | None
    partition: Partition | None
    num_states: int
    num_features: int = 0  # rank of the transitions, if low-rank
    rough: bool = False  # whether a GPU multiplies matrices of float32 in TF32 during training
    within_classes: ClassVar[bool] = False  # whether state dropout leaves p(class of z' | z) as it is

    @abstractmethod
    def parts(self, draw: Draw = WHOLE) -> Parts:
        """Start, transition and emission over the states that `draw` keeps, and the transitions from any state into
        them."""

    def touched_rows(self, draw: Draw) -> dict[nn.Parameter, Tensor]:
        """The rows of weights of which `parts` is a differentiable function, where these are not all rows."""
        return {}


class SavedParams(Params):
    """Parameters that can be saved to a file."""

    kind: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """The JSON values that `restore` needs besides the tensors."""
        return {"params": self.kind, "states": self.num_states}

    @classmethod
    @abstractmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> Self:
        """Rebuild the parameters from `settings` and `tensors`."""


@dataclass(frozen=True)
class NoOptions(Options):
    """No options besides those of an HMM."""


class WordParams(SavedParams):
    """Parameters over the words of a vocabulary, selectable in a configuration."""

    Options: ClassVar[type[Options]] = NoOptions  # the frozen dataclass of `model.params_options`
    drops: ClassVar[tuple[str, ...]] = ()  # supported kinds of dropout: "state", "unstructured"

    @classmethod
    def options(cls, config: HMMConfig) -> Any:
        """The parsed and checked `model.params_options`."""
        return parse_options(cls.Options, config.params_options, "model.params_options")

    @classmethod
    @abstractmethod
    def new(cls, words: Sequence[str], config: HMMConfig, support: Support, seed: int) -> Self:
        """Untrained parameters."""

    @abstractmethod
    def shift_word_logits(self, scores: Tensor) -> None:
        """Add scores [V] to the logits of the words in every state."""

    def set_support(self, support: Support) -> None:
        self.partition = support if isinstance(support, Partition) else None
        self.register_buffer("support", None if isinstance(support, Partition) else support)


def find_params(name: str) -> type[WordParams]:
    """The parameterisation of that name, built in or from an installed package."""
    path = choose(entries(PARAMETERS) | PARAMS, name, "model.params")
    found = resolve(path)
    if not (isinstance(found, type) and issubclass(found, WordParams)):
        raise TrellisError(f"The entry point {name!r} of {PARAMETERS} names {path!r}, which is not a WordParams.")
    return found


def check_choices(config: HMMConfig) -> None:
    """Raise if the parameterisation does not support the given options."""
    params = find_params(config.params)
    params.options(config)
    if config.dropout not in ("none", *params.drops):
        allowed = " or ".join(f'"{kind}"' for kind in ("none", *params.drops))
        raise TrellisError(
            f'model.params = "{config.params}" does not support model.dropout = "{config.dropout}": use {allowed}.'
        )


def restored_support(tensors: Mapping[str, Tensor], num_words: int, num_states: int) -> Support:
    """The support described by the state dict of a file; raises ValueError if it does not fit words and states."""
    if "partition.sizes" in tensors:
        word_class, sizes = tensors["partition.word_class"], tensors["partition.sizes"]
        check_indices("partition.sizes", sizes, (min(len(sizes), num_words),), 1, num_states + 1)
        check_indices("partition.word_class", word_class, (num_words,), 0, len(sizes))
        if int(sizes.sum()) != num_states:
            raise ValueError(f"the classes have {int(sizes.sum())} states, not {num_states}")
        return Partition(word_class, sizes.tolist())
    if (support := tensors.get("support")) is not None:
        check_indices("support", support, (num_words, support.shape[-1]), 0, num_states)
    return support


def add_by_state(logits: Tensor, support: Tensor, num_states: int) -> Tensor:
    """logsumexp over the words of each state: [V, k] -> [K]; -inf for a state without words."""
    top = torch.full((num_states,), -torch.inf, dtype=logits.dtype, device=logits.device)
    top = top.scatter_reduce(0, support.flatten(), logits.detach().flatten(), "amax")
    shift = top.masked_fill(top == -torch.inf, 0.0)
    scaled = (logits - take(shift, support)).exp().flatten()
    return torch.zeros_like(top).scatter_add(0, support.flatten(), scaled).log() + shift


def normalised(logits: Tensor, support: Support, num_states: int) -> Categorical:
    """log p(x | z) from logits [V, k], normalised per state over the words it can emit."""
    if support is None:
        return Categorical(logits - logits.logsumexp(0), None, num_states)  # torch's softmax over columns is slow
    if isinstance(support, Partition):
        allowed = support.allowed
        logits = logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)
        table = class_log_softmax(logits, support.word_class, support.words, support.begins)
        return Categorical(table, support, num_states)
    return Categorical(logits - take(add_by_state(logits, support, num_states), support), support, num_states)
