"""The state distribution carried over from batch to batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.engines.reference import at_states, move, to_dense
from trellis.parts import Parts
from trellis.transitions import Transition
from trellis.types import Batch, Belief


class Carry(NamedTuple):
    """The state distribution after the last token of each sequence, and which sequences have not begun yet."""

    belief: Belief
    fresh: Tensor  # [B] bool
    all_fresh: bool = False  # known statically: no sequence has begun

    @classmethod
    def begin(cls, batch: int, num_states: int, like: Tensor) -> Carry:
        """The state before the first token of `batch` sequences, with the dtype and device of `like`."""
        nothing = like.new_zeros(1, 1).expand(batch, num_states)
        return cls(Belief(nothing), torch.ones(batch, dtype=torch.bool, device=like.device), all_fresh=True)

    @classmethod
    def first(cls, belief: Belief, lengths: Tensor) -> Carry:
        """The state after the first batch. A sequence without tokens stays fresh, whatever its distribution."""
        return cls(belief, lengths == 0)

    def reset(self, where: Tensor) -> Carry:
        """The `Carry` of the first B sequences, in which those marked by the mask `where` [B] have not begun yet."""
        probs, ids = self.belief
        belief = Belief(probs[: len(where)], None if ids is None else ids[: len(where)])
        return Carry(belief, self.fresh[: len(where)] | where)

    def prior(self, start: Tensor, transition: Transition, ids: Tensor | None = None) -> Belief:
        """The distribution of the next state over the live states `ids`, [B, k], or over all states, [B, K]."""
        first = from_start(start, len(self.fresh), ids)
        if self.all_fresh or bool(self.fresh.all()):
            return first
        return Belief(torch.where(self.fresh.unsqueeze(-1), first.probs, move(self.belief, transition, ids)), ids)

    def after(self, belief: Belief, lengths: Tensor | None, num_states: int) -> Carry:
        """The state after a batch: `belief`, or the old state for sequences that have no tokens in the batch."""
        if self.all_fresh and lengths is not None:
            return Carry.first(belief, lengths)
        waits = belief.ids is not None or not belief.probs.is_cuda  # on a GPU, a check would wait for the device
        if lengths is None or (waits and bool((lengths > 0).all())):
            return Carry(belief, torch.zeros_like(self.fresh))
        old, new = (to_dense(b, num_states) for b in (self.belief, belief))
        idle = lengths == 0
        return Carry(Belief(torch.where(idle.unsqueeze(-1), old, new)), self.fresh & idle)

    def tensors(self) -> dict[str, Tensor]:
        """Named tensors, for checkpoints and CUDA graphs."""
        tensors = {"probs": self.belief.probs, "fresh": self.fresh}
        return tensors if self.belief.ids is None else tensors | {"ids": self.belief.ids}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Carry:
        return cls(Belief(tensors["probs"], tensors.get("ids")), tensors["fresh"])


def from_start(start: Tensor, batch: int, ids: Tensor | None) -> Belief:
    """The start distribution of `batch` sequences at the live states `ids`, [B, k], or at all states, [B, K]."""
    return Belief(at_states(start.expand(batch, -1), ids), ids)


def training_prior(carry: Carry | None, parts: Parts, batch: Batch, ids: Tensor | None) -> Belief:
    """The state distribution of a batch's first step, over the states of `parts`; dropout may have removed some.

    Does not synchronise with the device if `batch.all_fresh` is set."""
    if carry is None or batch.all_fresh or len(carry.fresh) < len(batch.tokens):
        return from_start(parts.start, len(batch.tokens), ids)
    carry = carry.reset(batch.fresh)
    kept_all = parts.kept is None
    onward = move(carry.belief, parts.transition, ids) if kept_all else move_into_kept(carry.belief, parts, ids)
    if batch.all_fresh is False:
        return Belief(onward, ids)
    first = from_start(parts.start, len(batch.tokens), ids)
    return Belief(torch.where(carry.fresh.unsqueeze(-1), first.probs, onward), ids)


def move_into_kept(belief: Belief, parts: Parts, ids: Tensor | None) -> Tensor:
    """Advance a distribution over the states of the full model by one step, into the states kept by dropout. The result
    is over the live states `ids` [B, k'], or over all kept states.

    Transition rows are normalised over the kept states."""
    assert parts.entry is not None
    probs, names = belief
    if not parts.emission.has_support:  # all sequences have the same source states
        rows = torch.arange(probs.shape[-1], device=probs.device) if names is None else names[0]
        return parts.entry(rows).forward(probs)
    if names is None:
        names = torch.arange(probs.shape[-1], device=probs.device).expand_as(probs)
    distinct, rows = each(names) if names.is_cuda else names.unique(return_inverse=True)
    after = torch.arange(parts.num_states, device=probs.device).expand(len(probs), -1)
    blocks = parts.entry(distinct).blocks(rows, after if ids is None else ids)
    return (probs.unsqueeze(-2) @ blocks).squeeze(-2)


def each(names: Tensor) -> tuple[Tensor, Tensor]:
    """All state ids, including repeated ones, and the position of each. Unlike the number of distinct ids, their number
    is known without synchronisation."""
    return names.flatten(), torch.arange(names.numel(), device=names.device).view(names.shape)
