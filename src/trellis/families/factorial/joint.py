"""A factorial HMM as a single HMM over joint states, for exact inference."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from trellis.families.factorial.loglinear import LogLinear
from trellis.families.factorial.parameters import LayeredParams
from trellis.inference import discrete
from trellis.inference.carry import Carry
from trellis.transitions import Kronecker
from trellis.transitions.kronecker import outer
from trellis.types import Belief, Potentials

ENTRIES = {"cpu": 1 << 25, "cuda": 1 << 28}  # tokens x joint states in memory at a time


class Joint(NamedTuple):
    """An HMM over K joint states, whose transition is a Kronecker product."""

    start: Tensor  # [K]
    transition: Kronecker
    emission: LogLinear
    log_partition: Tensor  # [K]
    table: Tensor | None  # [V, K]: log p(x | z), if small enough to keep in memory

    @classmethod
    def of(cls, params: LayeredParams, emission: LogLinear) -> Self:
        starts, transitions = params.chains()
        start, partition = outer([start.unsqueeze(0) for start in starts])[0], emission.log_partition()
        words = torch.arange(emission.num_words, device=start.device)
        small = len(start) * len(words) <= ENTRIES[start.device.type]
        table = emission.log_probs(words, partition) if small else None
        return cls(start, Kronecker(transitions), emission, partition, table)

    def potentials(self, tokens: Tensor) -> Potentials:
        """Potentials of tokens [B, T]; -1 is a missing word."""
        if self.table is not None:
            return Potentials(self.table, tokens)
        return self.emission.potentials(tokens, self.log_partition)

    def sentences(self, tokens: Tensor) -> tuple[Belief, Kronecker, Potentials]:
        """The inputs of `discrete` for new sentences [B, T]."""
        tokens = tokens.to(self.start.device)
        return Belief(self.start.expand(len(tokens), -1).contiguous()), self.transition, self.potentials(tokens)

    def forecast(self, state: Carry) -> Tensor:
        """log p(next word): [B, V]."""
        return self.emission.predict(state.prior(self.start, self.transition).probs, self.log_partition)

    def score(self, tokens: Tensor, state: Carry, lengths: Tensor) -> tuple[Tensor, Carry]:
        """log p(x_t | past) [B, T] and the state after, a few sentences at a time."""
        pieces = []
        for part in torch.arange(len(tokens), device=tokens.device).split(self.room(tokens)):
            before = Carry(Belief(state.belief.probs[part]), state.fresh[part])
            pieces.append(self.score_rows(tokens[part], before, lengths[part]))
        after = Carry(Belief(torch.cat([s.belief.probs for _, s in pieces])), torch.cat([s.fresh for _, s in pieces]))
        return torch.cat([scores for scores, _ in pieces]), after

    def score_rows(self, tokens: Tensor, state: Carry, lengths: Tensor) -> tuple[Tensor, Carry]:
        """`score`, a few steps at a time."""
        steps, pieces = max(1, self.room(tokens) // len(tokens)), []
        for first in range(0, tokens.shape[1], steps):
            left = (lengths - first).clamp(0, steps)
            prior = state.prior(self.start, self.transition)
            potentials = self.potentials(tokens[:, first : first + steps])
            log_norms, belief = discrete.score(prior, self.transition, potentials, left)
            state = state.after(belief, left, len(self.start))
            pieces.append(log_norms)
        return torch.cat(pieces, 1), state

    def room(self, tokens: Tensor) -> int:
        """The number of tokens processed at a time."""
        return max(1, ENTRIES[tokens.device.type] // len(self.start))
