"""The scalar parameterization: one logit per probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trellis.config import ModelConfig
from trellis.emissions import Categorical
from trellis.errors import TrellisError
from trellis.params.base import NOTHING, Params, Support, normalised, restored_support
from trellis.params.dropout import Dropped
from trellis.transitions import Dense, Transition
from trellis.types import Counts

LOG_ZERO = -1e30  # the logit of a probability that EM has estimated as zero: exp gives 0, and gradients stay finite


class TableParams(Params):
    """Logits of the start [K], of the transitions [K, K] and of the emissions [V, k] (see `Categorical`)."""

    kind = "scalar"
    counted = True

    def __init__(
        self,
        num_states: int,
        num_words: int,
        support: Support = None,
        spread: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.num_states = num_states
        generator = torch.Generator().manual_seed(seed)
        self.set_support(support)
        live = num_states if self.sets is None else self.sets.shape[1]

        def logits(*shape: int) -> nn.Parameter:
            return nn.Parameter(spread * torch.randn(shape, generator=generator))

        self.start_logits = logits(num_states)
        self.make_transition(logits)
        self.emission_logits = logits(num_words, live)

    def make_transition(self, logits: Callable[..., nn.Parameter]) -> None:
        """The logits of the transitions, drawn by logits(*shape)."""
        self.transition_logits = logits(self.num_states, self.num_states)

    @classmethod
    def new(cls, words: Sequence[str], config: ModelConfig, support: Support, seed: int) -> TableParams:
        if config.factored:
            raise TrellisError('model.factored is about embeddings: use model.params = "neural".')
        return cls(config.states, len(words), support, seed=seed)

    @torch.no_grad()
    def shift_word_logits(self, scores: Tensor) -> None:
        self.emission_logits.add_(scores.unsqueeze(-1))

    @property
    def sets(self) -> Tensor | None:
        """The states of each word: [V, k]; None: all."""
        return self.support if self.partition is None else self.partition.support

    def start(self, dropped: Dropped = NOTHING) -> Tensor:
        logits = self.start_logits if dropped.ids is None else self.start_logits[dropped.ids]
        return dropped.starts(logits).softmax(-1)

    def transition(self, dropped: Dropped = NOTHING) -> Transition:
        if dropped is NOTHING:
            return Dense(self.transition_logits.softmax(-1))
        everything = torch.arange(self.num_states, device=self.start_logits.device)
        return self.entry(everything if dropped.ids is None else dropped.ids, dropped)

    def entry(self, ids: Tensor, dropped: Dropped) -> Transition:
        columns = torch.arange(self.num_states, device=ids.device) if dropped.ids is None else dropped.ids
        logits = self.transition_logits[ids][:, columns]
        mask = dropped.mask(ids, columns)
        return Dense((logits if mask is None else logits.masked_fill(~mask.keeps(), -torch.inf)).softmax(-1))

    def emission(self, dropped: Dropped = NOTHING) -> Categorical:
        thin = dropped.partition
        if thin is None or self.partition is None or dropped.ids is None:
            logits = self.emission_logits if dropped.ids is None else self.emission_logits[:, dropped.ids]
            count = self.num_states if dropped.ids is None else len(dropped.ids)
            emission = normalised(logits, self.partition or self.support, count)
            emission.table = emission.table.masked_fill(logits <= LOG_ZERO, -torch.inf)
            return emission
        place = (dropped.ids[thin.windows] - self.partition.windows[:, :1]) % self.num_states  # within the class
        place = place if thin.own is None else place.masked_fill(~thin.own, 0)
        return normalised(self.emission_logits.gather(1, place[thin.word_class]), thin, thin.num_states)

    @torch.no_grad()
    def maximise(self, counts: Counts, pseudocount: float = 0.0) -> None:
        """The M-step: probabilities proportional to expected counts. A state never visited keeps what it had."""
        emission = counts.emission + pseudocount
        allowed = None if self.partition is None else self.partition.allowed
        emission = emission if allowed is None else emission * allowed
        used = emission if self.sets is None else visits_by_state(emission, self.sets, self.num_states)
        replace(self.start_logits, counts.start + pseudocount, (counts.start + pseudocount).sum(-1, keepdim=True))
        self.maximise_transition(counts.transition, pseudocount)
        replace(self.emission_logits, emission, used.sum(0) if self.sets is None else used)

    def maximise_transition(self, moves: Tensor, pseudocount: float) -> None:
        """Of expected transitions, in the operator's own statistics."""
        replace(self.transition_logits, moves + pseudocount, (moves + pseudocount).sum(-1, keepdim=True))

    @torch.no_grad()
    def set_probabilities(self, start: Tensor, transition: Tensor, emission: Tensor) -> None:
        """Set p(z_0) [K], p(z' | z) [K, K] and p(x | z) [K, V]."""
        given = {"start": start, "transition": transition, "emission": emission}
        for name, probs in given.items():
            if not torch.allclose(probs.sum(-1), probs.new_ones(()), atol=1e-4):
                raise TrellisError(
                    f"The {name} probabilities do not sum to one along the last axis; normalise them first."
                )
        table = emission.T if self.sets is None else emission.T.gather(1, self.sets)
        for logits, probs in (
            (self.start_logits, start),
            (self.transition_logits, transition),
            (self.emission_logits, table),
        ):
            logits.copy_(probs.log().clamp(min=LOG_ZERO))

    @classmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> TableParams:
        params = cls(int(settings["states"]), len(words), restored_support(tensors))
        params.to(tensors["start_logits"].dtype).load_state_dict(tensors)
        return params


def replace(logits: Tensor, counts: Tensor, total: Tensor) -> None:
    """logits := log(counts / total) where there is a total."""
    estimate = (counts.log() - total.log()).clamp(min=LOG_ZERO)
    logits.copy_(torch.where(total > 0, estimate.to(logits.dtype), logits))


def visits_by_state(visits: Tensor, support: Tensor, num_states: int) -> Tensor:
    """The total visits of each entry's state, laid out like the entries: [V, k]."""
    total = visits.new_zeros(num_states).scatter_add(0, support.flatten(), visits.flatten())
    return total[support]
