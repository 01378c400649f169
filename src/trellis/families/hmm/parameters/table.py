"""The table parameterisation: one logit per probability."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from trellis.emissions import Categorical
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters.base import WHOLE, Support, WordParams, normalised, restored_support
from trellis.families.hmm.parameters.dropout import Draw
from trellis.learning.base import Maximisable
from trellis.models.restoring import rebuilt
from trellis.parts import Parts
from trellis.transitions import Dense, DenseEntry, Entry, Transition

LOG_ZERO = -1e30  # the logit of a probability of zero: exp(LOG_ZERO) is 0, and gradients stay finite


class Tables(WordParams, Maximisable):
    """Logits of the start [K] and of the emissions [V, k] (see `Categorical`); subclasses add the transitions."""

    sizes: ClassVar[tuple[str, ...]] = ()  # options of the transitions, which are also arguments and settings

    def __init__(self, num_states: int, num_words: int, support: Support = None, init_std: float = 1.0, seed: int = 0):
        super().__init__()
        self.num_states = num_states
        generator = torch.Generator().manual_seed(seed)
        self.set_support(support)
        live = num_states if self.sets is None else self.sets.shape[1]

        def logits(*shape: int) -> nn.Parameter:
            return nn.Parameter(init_std * torch.randn(shape, generator=generator))

        self.start_logits = logits(num_states)
        for name, shape in self.transition_shapes().items():
            self.register_parameter(name, logits(*shape))
        self.emission_logits = logits(num_words, live)

    @classmethod
    def new(cls, words: Sequence[str], config: HMMConfig, support: Support, seed: int) -> Self:
        sizes = {name: getattr(config, name) for name in cls.sizes}
        return cls(config.states, len(words), support, seed=seed, **sizes)

    @classmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> Self:
        sizes = {name: int(settings[name]) for name in cls.sizes}
        states = int(settings["states"])
        support = restored_support(tensors, len(words), states)
        return rebuilt(lambda: cls(states, len(words), support, **sizes), tensors)

    @abstractmethod
    def transition_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of the transition logits."""

    @abstractmethod
    def transition(self, draw: Draw) -> Transition:
        """The transition between the states kept by the draw."""

    @abstractmethod
    def entry(self, ids: Tensor, draw: Draw) -> Entry:
        """Transitions from the states `ids` [R] of the full model into those kept by the draw."""

    @abstractmethod
    def write_transition(self, transition: Any) -> None:
        """Set the logits to those of this transition."""

    @torch.no_grad()
    def shift_word_logits(self, scores: Tensor) -> None:
        self.emission_logits.add_(scores.unsqueeze(-1))

    @property
    def sets(self) -> Tensor | None:
        """The states that can emit each word: [V, k]; None if all states can."""
        return self.support if self.partition is None else self.partition.support

    def parts(self, draw: Draw = WHOLE) -> Parts:
        start, emission = lambda: self.start(draw), self.emission(draw)
        return Parts(start, self.transition(draw), emission, lambda ids: self.entry(ids, draw), draw.ids)

    def start(self, draw: Draw) -> Tensor:
        logits = self.start_logits if draw.ids is None else self.start_logits[draw.ids]
        return draw.starts(logits).softmax(-1)

    def emission(self, draw: Draw) -> Categorical:
        thin = draw.partition
        if thin is None or self.partition is None or draw.ids is None:
            logits = self.emission_logits if draw.ids is None else self.emission_logits[:, draw.ids]
            count = self.num_states if draw.ids is None else len(draw.ids)
            emission = normalised(logits, self.partition or self.support, count)
            emission.table = emission.table.masked_fill(logits <= LOG_ZERO, -torch.inf)
            return emission
        place = (draw.ids[thin.windows] - self.partition.windows[:, :1]) % self.num_states  # within the class
        place = place if thin.own is None else place.masked_fill(~thin.own, 0)
        return normalised(self.emission_logits.gather(1, place[thin.word_class]), thin, thin.num_states)

    @torch.no_grad()
    def write(self, parts: Parts) -> None:
        set_log(self.start_logits, parts.start)
        self.write_transition(parts.transition)
        self.emission_logits.copy_(parts.emission.table.clamp(min=LOG_ZERO))


class TableParams(Tables):
    """Table parameters with transition logits [K, K]."""

    kind = "table"
    drops = ("state", "unstructured")
    transition_logits: nn.Parameter

    def transition_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"transition_logits": (self.num_states, self.num_states)}

    def transition(self, draw: Draw) -> Transition:
        everything = torch.arange(self.num_states, device=self.start_logits.device)
        if draw is WHOLE:
            return Dense(self.transition_logits.softmax(-1))
        return Dense(self.entry(everything if draw.ids is None else draw.ids, draw).matrix)

    def entry(self, ids: Tensor, draw: Draw) -> DenseEntry:
        columns = torch.arange(self.num_states, device=ids.device) if draw.ids is None else draw.ids
        logits = self.transition_logits[ids][:, columns]
        mask = draw.mask(ids, columns)
        return DenseEntry((logits if mask is None else logits.masked_fill(~mask.keeps(), -torch.inf)).softmax(-1))

    def write_transition(self, transition: Dense) -> None:
        set_log(self.transition_logits, transition.matrix)

    @torch.no_grad()
    def set_probabilities(self, start: Tensor, transition: Tensor, emission: Tensor) -> None:
        """Set p(z_0) [K], p(z' | z) [K, K] and p(x | z) [K, V]."""
        given = {"start": start, "transition": transition, "emission": emission}
        for name, probs in given.items():
            if not torch.allclose(probs.sum(-1), probs.new_ones(()), atol=1e-4):
                raise TrellisError(f"The {name} probabilities do not sum to one along the last axis; normalise them.")
        table = emission.T if self.sets is None else emission.T.gather(1, self.sets)
        self.write(Parts(start, Dense(transition), Categorical(table.log(), None, self.num_states)))


def set_log(logits: Tensor, probs: Tensor) -> None:
    """logits := log(probs), LOG_ZERO for zero."""
    logits.copy_(probs.log().clamp(min=LOG_ZERO))
