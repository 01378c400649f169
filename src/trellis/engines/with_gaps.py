"""Filtering, smoothing and Viterbi for one sequence with gaps. All states are live at the gaps.

The recursions are those of reference.py. The transition probabilities between two steps are computed once for all
recursions. Between two adjacent gaps, they are the whole transition matrix, which is not stored. If it is computed
piece by piece, one pass over the pieces serves the filter, the Viterbi scores and, for the last two adjacent gaps, the
messages from the future."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.engines.reference import Steps, first_step
from trellis.transitions import Softmax, Transition
from trellis.transitions.pieces import best_sums, crossed
from trellis.types import Belief, Potentials

ENTRIES = 1 << 18  # entries of a matrix that are processed at a time, so that they stay in the cache of a CPU
KEPT = 1 << 27  # maximum transition probabilities that are stored
Report = Callable[[float], object]  # called with the share of the work between adjacent gaps that is done


class Solved(NamedTuple):
    """The state distributions and the Viterbi path of one sequence. If the sequence is impossible, `posterior` is zero,
    and `filtered` is zero from the first impossible step on."""

    log_norms: Tensor  # [T]: log p(x_t | x_<t)
    filtered: Tensor  # [T, K]: p(z_t | x_<=t)
    posterior: Tensor  # [T, K]: p(z_t | x)
    path: Tensor  # [T]: the Viterbi path
    log_prob: Tensor  # log p(path, x)


class Passes:
    """The recursions over time for a batch of one sequence."""

    def __init__(self, prior: Belief, transition: Transition, potentials: Potentials, report: Report = bool) -> None:
        self.transition, self.states, self.length = transition, transition.num_states, potentials.rows.shape[1]
        self.steps = Steps(potentials, self.states, potentials.rows.new_full((1,), self.length))
        self.ids = [None if live is None else live[0] for live in map(self.steps.ids, range(self.length))]
        self.first = first_step(prior, self.steps.ids(0), self.states)[0]
        self.everything = torch.arange(self.states, device=self.first.device)
        self.blocks: dict[int, Tensor] = {}
        self.messages: dict[int, Tensor] = {}
        pairs = pairwise(self.ids)
        self.between_gaps = [t for t, (here, there) in enumerate(pairs) if here is None and there is None]
        self.in_pieces = isinstance(transition, Softmax) and not self.first.is_cuda
        self.report = report

    def block(self, t: int) -> Tensor | None:
        """The transition probabilities from step t to the next one, [k, k'], or None between two adjacent gaps."""
        if t in self.blocks:
            return self.blocks[t]
        if t in self.between_gaps:
            return None
        found = self.transition.blocks(self.names(t), self.names(t + 1))
        if sum(map(Tensor.numel, self.blocks.values())) + found.numel() <= KEPT:
            self.blocks[t] = found
        return found

    def names(self, t: int) -> Tensor:
        """The states of step t: [k]."""
        ids = self.ids[t]
        return self.everything if ids is None else ids

    def weights(self, t: int) -> tuple[Tensor, Tensor]:
        """The scaled likelihoods of the states of step t, [k], and the log of the scale."""
        weights, scale = self.steps.weights(t)
        return weights[0], scale[0]

    def forward(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """For each step, log p(x_t | x_<t), p(z_t | x_<=t) [k] and the Viterbi scores [k]."""
        norms: list[Tensor] = []
        filtered: list[Tensor] = []
        scores: list[Tensor] = []
        for t in range(self.length):
            first = self.first, self.first.log()
            predicted, best = self.moved(t - 1, filtered[-1], scores[-1]) if t else first
            weights, scale = self.weights(t)
            joint = predicted * weights
            norm = joint.sum()
            filtered.append(torch.where(norm > 0, joint / norm, 0.0))
            norms.append(norm.log() + scale)
            scores.append(best + self.steps.log_weights(t)[0])
        return norms, filtered, scores

    def moved(self, t: int, probs: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Take a state distribution and Viterbi scores from step t to the next one."""
        block = self.block(t)
        if block is not None:
            return probs @ block, best_of(block, scores)
        if not self.in_pieces:
            return self.transition.forward(probs), self.transition.max_product(scores.unsqueeze(0))[0][0]
        return self.crossed(t, probs, scores)

    def crossed(self, t: int, probs: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Like `moved`, for two adjacent gaps: the transition matrix is computed piece by piece."""
        assert isinstance(self.transition, Softmax)
        place, all_of_them = self.between_gaps.index(t), len(self.between_gaps)
        last = place == all_of_them - 1
        ahead = self.ahead(t) if last else None
        moved, best, pulled = crossed(
            self.transition, probs, scores, ahead, lambda done: self.report((place + done) / all_of_them)
        )
        if last:
            self.messages[t] = scaled(pulled)
        return moved, best

    def ahead(self, t: int) -> Tensor:
        """The message of step t + 1 times the scaled likelihoods of its states: [k']. The product of the transition
        matrix and this vector is the message of step t, up to a constant factor."""
        return self.message(t + 1) * self.weights(t + 1)[0]

    def message(self, t: int) -> Tensor:
        """The message of step t: p(x_>t | z_t), up to a constant factor: [k]."""
        for step in reversed(range(t, self.length)):
            if step not in self.messages:
                self.messages[step] = self.pulled(step)
        return self.messages[t]

    def pulled(self, t: int) -> Tensor:
        """The message of step t, computed from that of the next step."""
        if t == self.length - 1:
            return self.first.new_ones(len(self.names(t)))
        block, ahead = self.block(t), self.ahead(t)
        return scaled(self.transition.backward(ahead) if block is None else block @ ahead)

    def posterior(self, filtered: list[Tensor]) -> list[Tensor]:
        """p(z_t | x) of each step, [k], given p(z_t | x_<=t)."""
        _ = self.message(0)
        joint = [probs * self.message(t) for t, probs in enumerate(filtered)]
        return [torch.where(one.sum() > 0, one / one.sum(), 0.0) for one in joint]

    def viterbi(self) -> tuple[Tensor, Tensor]:
        """The most probable path [T] and log p(path, x)."""
        return self.path(self.forward()[2])

    def path(self, scores: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The path with the best Viterbi scores. Among equally good states, the first is chosen."""
        score, place = scores[-1].max(-1)
        path = [self.names(self.length - 1)[place]]
        for t in reversed(range(self.length - 1)):
            block = self.blocks.get(t)
            here = path[-1].unsqueeze(0)
            column = self.transition.blocks(self.names(t), here)[:, 0] if block is None else block[:, place]
            place = (scores[t] + column.log()).argmax()
            path.append(self.names(t)[place])
        return torch.stack(path[::-1]), score


def best_of(block: Tensor, scores: Tensor) -> Tensor:
    """For each column z', the maximum over z of scores[z] + log block[z, z']: [k']. The block [k, k'] of transition
    probabilities is processed piece by piece."""
    if len(block) <= block.shape[1]:
        parts = block.split(max(1, ENTRIES // len(block)), 1)
        return torch.cat([best_sums(part, scores) for part in parts])
    size = max(1, ENTRIES // block.shape[1])
    pairs = zip(block.split(size), scores.split(size), strict=True)
    return torch.stack([best_sums(part, some) for part, some in pairs]).amax(0)


def scaled(message: Tensor) -> Tensor:
    return message / message.max().clamp(min=torch.finfo(message.dtype).tiny)


def solve(prior: Belief, transition: Transition, potentials: Potentials, report: Report = bool) -> Solved:
    """Filter, smooth and find the Viterbi path of a batch of one sequence, which may have gaps. `report` is called with
    the share of the work between adjacent gaps that is done, if the transition matrix is computed piece by piece."""
    passes = Passes(prior, transition, potentials, report)
    norms, filtered, scores = passes.forward()
    both = filtered, passes.posterior(filtered)
    ahead, posterior = (passes.steps.stack([row.unsqueeze(0) for row in rows])[0] for rows in both)
    path, log_prob = passes.path(scores)
    return Solved(torch.stack(norms), ahead, posterior, path, log_prob)
