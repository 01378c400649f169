"""Structured mean field for layered chains: q(z) = prod_m q_m, each q_m a Markov chain with potentials of its own.

The emission is log-linear, so the expectation of log Z(z_t) under q has no closed form; for any tilt c,
    E log Z(z_t) <= sum_mk q_mk c_mk + log sum_x e^bias_x prod_m a_m(x),    a_m(x) = sum_k q_mk exp(theta_xmk - c_mk).
"jensen" keeps c = 0. "tilted" takes the best c of the layer whose turn it is,
    c_mk = log sum_x e^bias_x prod_{n != m} a_n(x) exp(theta_xmk),
after which the bound is linear in q_m: the layer's chain has the potentials theta_{x_t mk} - c_mk. One layer at a time
the bound on log p(x) never falls. With one layer the tilted bound is log p(x) itself.

All work is done on blocks of whole sentences, as products between tokens, states and words; what exists at a time does
not grow with the text. Layers lie side by side in the last dimension, S = sum_m K_m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.emissions import LogLinear
from trellis.emissions.slope import CACHE, SMALLEST
from trellis.inference import discrete
from trellis.operators import Dense
from trellis.types import Belief, Potentials


class Chains(NamedTuple):
    """The layers' own dynamics."""

    starts: Sequence[Tensor]  # [K_m]
    transitions: Sequence[Tensor]  # [K_m, K_m]


class Field(NamedTuple):
    """A mean field of B sentences, padded to T; past the end, and where the word is missing, all is zero."""

    probs: Tensor  # [B, T, S]: q(z_m = k)
    tilts: Tensor  # [B, T, S]: c


class Inferred(NamedTuple):
    """What coordinate ascent came to."""

    bound: Tensor  # [B] float64: at most log p(x)
    field: Field
    potentials: Tensor  # [B, T, S]: log-potentials of the chains, of which q has the marginals
    log_norms: Tensor  # [B, M] float64: log-normalisers of the chains

    def join(self, other: Inferred) -> Inferred:
        """The sentences of both; `other` may be shorter."""
        steps = self.potentials.shape[1]
        wider = [pad_steps(value, steps) for value in (*other.field, other.potentials)]
        joined = [torch.cat(pair) for pair in zip((*self.field, self.potentials), wider, strict=True)]
        bound, log_norms = torch.cat([self.bound, other.bound]), torch.cat([self.log_norms, other.log_norms])
        return Inferred(bound, Field(*joined[:2]), joined[2], log_norms)


def pad_steps(values: Tensor, steps: int) -> Tensor:
    """Zeros after the last step: [B, T', S] -> [B, T, S]."""
    return torch.nn.functional.pad(values, (0, 0, 0, steps - values.shape[1]))


class Step(NamedTuple):
    """A layer's new tilt and its penalty, the gradient of the bound on E log Z in q: [n, K_m] each."""

    tilt: Tensor
    penalty: Tensor


def tilted_step(weights: Tensor, total: Tensor, shift: Tensor) -> Step:
    """weights [n, K_m]: sum_x of the other layers' product times exp(theta - shift); total [n, 1]: of all layers'."""
    tilt = weights.log() + shift
    return Step(tilt, tilt)


def jensen_step(weights: Tensor, total: Tensor, shift: Tensor) -> Step:
    return Step(torch.zeros_like(weights), weights * shift.exp() / total)


BOUNDS: dict[str, Callable[[Tensor, Tensor, Tensor], Step]] = {"tilted": tilted_step, "jensen": jensen_step}


class Ascent:
    """Coordinate ascent on the bound for one block of sentences: `update` a layer, then another."""

    def __init__(
        self,
        chains: Chains,
        emission: LogLinear,
        tokens: Tensor,
        lengths: Tensor,
        bound: str = "tilted",
        field: Field | None = None,
    ) -> None:
        self.chains, self.emission, self.lengths, self.step = chains, emission, lengths, BOUNDS[bound]
        inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(-1)
        self.seen = inside & (tokens >= 0)
        self.words = tokens[self.seen]
        self.shifts = [layer.amax(0) for layer in emission.layers()]
        pairs = zip(emission.layers(), self.shifts, strict=True)
        self.tables = [(layer - shift).exp().T.contiguous() for layer, shift in pairs]  # [K_m, V]
        self.scores = [layer[self.words] for layer in emission.layers()]  # [n, K_m]
        sizes, step = emission.sizes, max(1, CACHE[tokens.device.type] // emission.num_words)
        self.potentials = [tokens.new_zeros(*tokens.shape, size, dtype=emission.theta.dtype) for size in sizes]
        self.probs = list(self.potentials)
        self.log_norms = tokens.new_zeros(len(tokens), len(sizes), dtype=torch.float64)
        if field is None:
            self.begin()
        else:
            self.probs = list(field.probs.split(sizes, -1))
            self.tilts = list(field.tilts[self.seen].split(sizes, -1))
        self.others = self.bias_weights().repeat(len(self.words), 1)  # the product of all layers' activities but one's
        self.out = 0  # that one
        self.chunks = [slice(first, first + step) for first in range(0, len(self.words), step)]
        self.reach = self.leave_out(0, range(1, len(sizes)))

    def begin(self) -> None:
        """Each layer as if the others were not there."""
        weights = self.bias_weights()
        self.tilts = []
        for m, (table, shift) in enumerate(zip(self.tables, self.shifts, strict=True)):
            alone = (table @ weights).log() + shift
            self.walk(m, self.scores[m] - alone)
            self.tilts.append(self.step((table @ weights).expand_as(self.scores[m]), weights.sum(), shift).tilt)

    def bias_weights(self) -> Tensor:
        """e^bias over its sum: [V]."""
        return self.emission.bias.softmax(0)

    def weights(self, m: int) -> Tensor:
        """What makes a_m(x) out of exp(theta - shift): [n, K_m]."""
        return self.probs[m][self.seen] * (self.shifts[m] - self.tilts[m]).exp()

    def leave_out(self, m: int, enter: Iterable[int]) -> Tensor:
        """Let the layers `enter` into the product of activities, and layer m out; sum_x of the product times
        exp(theta_m - shift): [n, K_m]. A few tokens at a time, so that [n, V] is read and written once."""
        entering = [(self.weights(n), self.tables[n]) for n in enter]
        leaving = [(self.weights(m), self.tables[m])] if m != self.out else []
        reach = torch.empty_like(self.scores[m])
        for rows in self.chunks:
            others = self.others[rows]
            for weights, table in entering:
                others.mul_((weights[rows] @ table).clamp_(min=SMALLEST[table.dtype]))
            for weights, table in leaving:
                others.div_((weights[rows] @ table).clamp_(min=SMALLEST[table.dtype]))
            reach[rows] = (self.tables[m] @ others.T).T
        self.out = m
        return reach

    def total(self) -> Tensor:
        """sum_x e^bias_x prod_m a_m(x) of every token: [n]."""
        return (self.weights(self.out) * self.reach).sum(-1)

    def walk(self, m: int, potentials: Tensor) -> None:
        """Forward and backward through layer m with new potentials [n, K_m]."""
        self.potentials[m] = self.potentials[m].masked_scatter(self.seen.unsqueeze(-1), potentials)
        result = discrete.smooth(*chain(self.chains, m, self.potentials[m], self.lengths))
        self.probs[m], self.log_norms[:, m] = result.probs, result.log_likelihood

    def update(self, m: int) -> None:
        """The best q_m given the others."""
        self.reach = self.leave_out(m, [] if m == self.out else [self.out])
        self.tilts[m], penalty = self.step(self.reach, self.total().unsqueeze(-1), self.shifts[m])
        self.walk(m, self.scores[m] - penalty)

    def bound(self) -> Tensor:
        """The bound on log p of each sentence, [B]; every layer must have been walked through."""
        value = self.emission.bias.log_softmax(0)[self.words].double() - self.total().double().log()
        for m, scores in enumerate(self.scores):
            gain = scores - self.tilts[m] - self.potentials[m][self.seen]
            value = value + (self.probs[m][self.seen] * gain).sum(-1, dtype=torch.float64)
        tokens = torch.zeros_like(self.seen, dtype=torch.float64).masked_scatter(self.seen, value)
        return self.log_norms.sum(-1) + tokens.sum(-1)

    def result(self) -> Inferred:
        potentials, probs = torch.cat(self.potentials, -1), torch.cat(self.probs, -1)
        tilts = torch.zeros_like(probs).masked_scatter(self.seen.unsqueeze(-1), torch.cat(self.tilts, -1))
        return Inferred(self.bound(), Field(probs, tilts), potentials, self.log_norms)


def chain(chains: Chains, m: int, potentials: Tensor, lengths: Tensor) -> tuple[Belief, Dense, Potentials, Tensor]:
    """Layer m with potentials [B, T, K_m], as `discrete` takes it; on a GPU with a matrix per step, since there one
    program can walk through those."""
    batch, steps, size = potentials.shape
    prior, matrix = Belief(chains.starts[m].expand(batch, -1).contiguous()), chains.transitions[m]
    if potentials.is_cuda:
        matrix = matrix.expand(batch, steps - 1, size, size)
    return prior, Dense(matrix), Potentials.of(potentials), lengths
