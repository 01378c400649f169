"""The passes over one sequence with gaps: over all states at the gaps, and over live states at the other steps.

The recursions are those of reference.py. The transitions between two steps are computed once for all passes, unless
both steps are gaps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.engines.reference import Steps, first_step
from trellis.transitions import Transition
from trellis.types import Belief, Potentials

ENTRIES = 1 << 24  # sums of scores and log-probabilities in memory at a time
KEPT = 1 << 27  # transitions that are kept


class Solved(NamedTuple):
    """The states of one sequence; probabilities are zero if the sequence has probability zero."""

    log_norms: Tensor  # [T]: log p(x_t | x_<t)
    filtered: Tensor  # [T, K]: p(z_t | x_<=t)
    posterior: Tensor  # [T, K]: p(z_t | x)
    path: Tensor  # [T]: the Viterbi path
    log_prob: Tensor  # log p(path, x)


class Passes:
    """The passes over a batch of one sequence."""

    def __init__(self, prior: Belief, transition: Transition, potentials: Potentials) -> None:
        self.transition, self.states, self.length = transition, transition.num_states, potentials.rows.shape[1]
        self.steps = Steps(potentials, self.states, potentials.rows.new_full((1,), self.length))
        self.ids = [None if live is None else live[0] for live in map(self.steps.ids, range(self.length))]
        self.first = first_step(prior, self.steps.ids(0), self.states)[0]
        self.everything = torch.arange(self.states, device=self.first.device)
        self.blocks: dict[int, Tensor] = {}

    def block(self, t: int) -> Tensor | None:
        """The transitions from step t to the next one, [k, k']; None between two gaps."""
        if t in self.blocks:
            return self.blocks[t]
        before, after = self.ids[t : t + 2]
        if before is None and after is None:
            return None
        rows, columns = (self.everything if ids is None else ids for ids in (before, after))
        found = self.transition.blocks(rows, columns)
        if sum(map(Tensor.numel, self.blocks.values())) + found.numel() <= KEPT:
            self.blocks[t] = found
        return found

    def forward(self) -> tuple[list[Tensor], list[Tensor]]:
        """log c_t and a_t [k] of each step."""
        norms: list[Tensor] = []
        filtered: list[Tensor] = []
        for t in range(self.length):
            predicted = self.first if t == 0 else self.moved(t - 1, filtered[-1])
            weights, scale = (value[0] for value in self.steps.weights(t))
            joint = predicted * weights
            norm = joint.sum()
            filtered.append(torch.where(norm > 0, joint / norm, 0.0))
            norms.append(norm.log() + scale)
        return norms, filtered

    def moved(self, t: int, probs: Tensor) -> Tensor:
        """A distribution over the states of step t, one step forward."""
        block = self.block(t)
        return self.transition.forward(probs) if block is None else probs @ block

    def backward(self, filtered: list[Tensor]) -> list[Tensor]:
        """p(z_t | x) of each step, [k]: a_t times the message from the future, normalised."""
        message, posterior = torch.ones_like(filtered[-1]), [filtered[-1]]
        for t in reversed(range(self.length - 1)):
            block, ahead = self.block(t), message * self.steps.weights(t + 1)[0][0]
            message = self.transition.backward(ahead) if block is None else block @ ahead
            message = message / message.max().clamp(min=torch.finfo(message.dtype).tiny)
            joint = filtered[t] * message
            posterior.append(torch.where(joint.sum() > 0, joint / joint.sum(), 0.0))
        return posterior[::-1]

    def viterbi(self) -> tuple[Tensor, Tensor]:
        """The most probable path [T] and log p(path, x); ties go to the lowest position."""
        scores, pointers = self.first.log() + self.steps.log_weights(0)[0], []
        for t in range(1, self.length):
            best, argument = self.best(t - 1, scores)
            pointers.append(argument)
            scores = best + self.steps.log_weights(t)[0]
        score, place = scores.max(-1)
        places = [place]
        for pointer in reversed(pointers):
            places.append(pointer[places[-1]])
        pairs = zip(reversed(places), self.ids, strict=True)
        return torch.stack([one if live is None else live[one] for one, live in pairs]), score

    def best(self, t: int, scores: Tensor) -> tuple[Tensor, Tensor]:
        """max and argmax over the states z of step t of scores(z) + log A(z, z')."""
        block = self.block(t)
        if block is None:
            values, states = self.transition.max_product(scores.unsqueeze(0))
            return values[0], states[0]
        pieces = block.split(max(1, ENTRIES // len(block)), 1)
        found = [(scores.unsqueeze(-1) + some.log()).max(0) for some in pieces]
        values, places = (torch.cat(parts) for parts in zip(*found, strict=True))
        return values, places


def solve(prior: Belief, transition: Transition, potentials: Potentials) -> Solved:
    """Filter, smooth and find the Viterbi path of a batch of one sequence, which may have gaps."""
    passes = Passes(prior, transition, potentials)
    norms, filtered = passes.forward()
    both = filtered, passes.backward(filtered)
    ahead, posterior = (passes.steps.stack([row.unsqueeze(0) for row in rows])[0] for rows in both)
    path, log_prob = passes.viterbi()
    return Solved(torch.stack(norms), ahead, posterior, path, log_prob)
