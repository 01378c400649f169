"""Structured mean field for layered chains: q(z) = prod_m q_m, each q_m a Markov chain with its own potentials.

The emission is log-linear, so the expectation of log Z(z_t) under q has no closed form; for any tilt c,
    E log Z(z_t) <= sum_mk q_mk c_mk + log sum_x e^bias_x prod_m a_m(x),    a_m(x) = sum_k q_mk exp(theta_xmk - c_mk).
"jensen" keeps c = 0. "tilted" uses the optimal c of the layer being updated,
    c_mk = log sum_x e^bias_x prod_{n != m} a_n(x) exp(theta_xmk),
which makes the bound linear in q_m: the layer's chain has the potentials theta_{x_t mk} - c_mk. Updating one layer
at a time never lowers the bound on log p(x). With one layer the tilted bound equals log p(x).

Computation runs on blocks of whole sentences, so memory does not grow with the text. Layers are concatenated in the
last dimension, S = sum_m K_m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.families.factorial.loglinear import CACHE, HELD, LogLinear, floor, with_floor
from trellis.inference import discrete
from trellis.transitions import Blocks, Dense
from trellis.types import Belief, Counts, Potentials

Chain = tuple[Belief, Dense | Blocks, Potentials, Tensor]  # the inputs of `discrete`


class Chains(NamedTuple):
    """Starts and transitions of the layers."""

    starts: Sequence[Tensor]  # [K_m]
    transitions: Sequence[Tensor]  # [K_m, K_m]


class Field(NamedTuple):
    """A mean field of B sentences, padded to T; zero in the padding and where the word is missing."""

    probs: Tensor  # [B, T, S]: q(z_m = k)
    tilts: Tensor  # [B, T, S]: c


class Inferred(NamedTuple):
    """The result of coordinate ascent."""

    bound: Tensor  # [B] float64: at most log p(x)
    field: Field
    potentials: Tensor  # [B, T, S]: log-potentials of the chains whose marginals are q
    log_norms: Tensor  # [B, M] float64: log-normalisers of the chains

    @classmethod
    def joined(cls, parts: Sequence[Inferred], steps: int) -> Inferred:
        """Concatenate the sentences of all parts, padded to `steps`."""
        by_step = zip(*((*part.field, part.potentials) for part in parts), strict=True)
        probs, tilts, potentials = (torch.cat([pad_steps(one, steps) for one in values]) for values in by_step)
        bounds, log_norms = torch.cat([part.bound for part in parts]), torch.cat([part.log_norms for part in parts])
        return cls(bounds, Field(probs, tilts), potentials, log_norms)


def pad_steps(values: Tensor, steps: int) -> Tensor:
    """Pad with zeros after the last step: [B, T', S] -> [B, T, S]."""
    return torch.nn.functional.pad(values, (0, 0, 0, steps - values.shape[1]))


class Step(NamedTuple):
    """A layer's new tilt, and its penalty (the gradient of the bound on E log Z in q_m): [n, K_m] each."""

    tilt: Tensor
    penalty: Tensor


def tilted_step(weights: Tensor, total: Tensor, shift: Tensor) -> Step:
    """The new tilt and penalty of a layer. `weights` [n, K_m] is the sum over words of the product of the other layers'
    a(x) times exp(theta - shift). `total` [n, 1] is the sum over words of the product of all layers' a(x)."""
    tilt = weights.log() + shift
    return Step(tilt, tilt)


def jensen_step(weights: Tensor, total: Tensor, shift: Tensor) -> Step:
    return Step(torch.zeros_like(weights), weights * shift.exp() / total)


BOUNDS: dict[str, Callable[[Tensor, Tensor, Tensor], Step]] = {"tilted": tilted_step, "jensen": jensen_step}


class Ascent:
    """Coordinate ascent on the bound for one block of sentences: call `update` on one layer after another.

    Tokens and lengths may stay on the CPU with the model on a GPU; then nothing here synchronises with the GPU."""

    def __init__(
        self,
        chains: Chains,
        emission: LogLinear,
        tokens: Tensor,
        lengths: Tensor,
        bound: str = "tilted",
        field: Field | None = None,
    ) -> None:
        device, dtype, sizes = emission.theta.device, emission.theta.dtype, emission.sizes
        self.chains, self.emission, self.step = chains, emission, BOUNDS[bound]
        self.shape, self.lengths = tokens.shape, lengths.to(device, non_blocking=True)
        places = word_places(tokens, lengths)
        self.places = places.to(device, non_blocking=True)
        self.words = tokens.flatten()[places].to(device, non_blocking=True)
        self.shifts = [layer.amax(0) for layer in emission.layers()]
        self.tables = [with_floor(layer, shift) for layer, shift in zip(emission.layers(), self.shifts, strict=True)]
        self.scores = [layer[self.words] for layer in emission.layers()]  # [n, K_m]
        self.potentials = [torch.zeros(*self.shape, size, device=device, dtype=dtype) for size in sizes]
        self.log_norms = torch.zeros(len(tokens), len(sizes), device=device, dtype=torch.float64)
        if field is None:
            self.probs = list(self.potentials)
            self.begin()
        else:
            self.probs = list(field.probs.split(sizes, -1))
            self.tilts = [self.at_words(tilt) for tilt in field.tilts.split(sizes, -1)]
        self.weights = [self.weigh(m) for m in range(len(sizes))]  # [n, K_m + 1]
        self.others = emission.bias.softmax(0).repeat(len(self.words), 1)  # product of a_m(x) over all layers but one
        self.out = 0  # the layer left out
        step = max(1, CACHE[device.type] // emission.num_words)
        self.chunks = [slice(first, first + step) for first in range(0, len(self.words), step)]
        self.buffer = torch.empty_like(self.others[:step])
        self.reach = self.leave_out(0, range(1, len(sizes)))

    def begin(self) -> None:
        """Initialise each layer independently of the others."""
        weights = self.emission.bias.softmax(0)
        self.tilts = []
        for m, (table, shift) in enumerate(zip(self.tables, self.shifts, strict=True)):
            reach = (table @ weights)[:-1]
            self.walk(m, self.scores[m] - reach.log() - shift)
            self.tilts.append(self.step(reach.expand_as(self.scores[m]), weights.sum(), shift).tilt)

    def at_words(self, values: Tensor) -> Tensor:
        """Select the positions that hold a word: [B, T, K_m] -> [n, K_m]."""
        return values.flatten(0, 1).index_select(0, self.places)

    def weigh(self, m: int) -> Tensor:
        """Weights that turn the layer's table into a_m(x): [n, K_m + 1]."""
        weights = self.at_words(self.probs[m]) * (self.shifts[m] - self.tilts[m]).exp()
        return torch.nn.functional.pad(weights, (0, 1), value=floor(weights.dtype, len(self.tables)))

    def leave_out(self, m: int, enter: Iterable[int]) -> Tensor:
        """Multiply the product of a(x) over layers by those of the layers `enter`, and divide it by that of layer m.

        Returns sum_x of the product times the table of layer m: [n, K_m + 1]."""
        changes: list[tuple[int, Callable[..., Tensor]]] = [(n, Tensor.mul_) for n in enter]
        changes += [(m, Tensor.div_)] if m != self.out else []
        reach = self.others.new_empty(len(self.words), len(self.tables[m]))
        for rows in self.chunks:
            others = self.others[rows]
            for n, change in changes:
                change(others, torch.mm(self.weights[n][rows], self.tables[n], out=self.buffer[: len(others)]))
            torch.mm(others, self.tables[m].T, out=reach[rows])
        self.out = m
        return reach

    def total(self) -> Tensor:
        """sum_x e^bias_x prod_m a_m(x) of every token: [n]."""
        return (self.weights[self.out] * self.reach).sum(-1)

    def walk(self, m: int, potentials: Tensor) -> None:
        """Run forward-backward on layer m with new potentials [n, K_m], and store the posteriors."""
        self.potentials[m] = self.spread(potentials)
        result = discrete.smooth(*chain(self.chains, m, self.potentials[m], self.lengths))
        self.probs[m], self.log_norms[:, m] = result.probs, result.log_likelihood

    def spread(self, values: Tensor) -> Tensor:
        """Scatter values of words to their positions: [n, ...] -> [B, T, ...], zero elsewhere."""
        padded = values.new_zeros(self.shape.numel(), *values.shape[1:])
        return padded.index_copy_(0, self.places, values).unflatten(0, self.shape)

    def update(self, m: int) -> None:
        """Set q_m to its optimum given the other layers."""
        self.reach = self.leave_out(m, [] if m == self.out else [self.out])
        self.tilts[m], penalty = self.step(self.reach[:, :-1], self.total().unsqueeze(-1), self.shifts[m])
        self.walk(m, self.scores[m] - penalty)
        self.weights[m] = self.weigh(m)

    def bound(self) -> Tensor:
        """The bound on log p of each sentence, [B]; requires a forward-backward pass through every layer."""
        value = self.emission.bias.log_softmax(0)[self.words].double() - self.total().double().log()
        for m, scores in enumerate(self.scores):
            gain = scores - self.tilts[m] - self.at_words(self.potentials[m])
            value = value + (self.at_words(self.probs[m]) * gain).sum(-1, dtype=torch.float64)
        return self.log_norms.sum(-1) + self.spread(value).sum(-1)

    def result(self) -> Inferred:
        potentials, probs = torch.cat(self.potentials, -1), torch.cat(self.probs, -1)
        return Inferred(self.bound(), Field(probs, self.spread(torch.cat(self.tilts, -1))), potentials, self.log_norms)


def word_places(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Flat indices of the positions [B, T] that hold a word: [n]."""
    inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(-1)
    return (inside & (tokens >= 0)).flatten().nonzero().squeeze(-1)


def chain(chains: Chains, m: int, potentials: Tensor, lengths: Tensor) -> Chain:
    """Inputs of `discrete` for layer m with potentials [B, T, K_m]. On a GPU there is a matrix per step, so that one
    kernel can run all steps."""
    batch, steps, size = potentials.shape
    prior, matrix = Belief(chains.starts[m].expand(batch, -1).contiguous()), chains.transitions[m]
    by_step = potentials.is_cuda and steps > 1
    transition = Blocks(matrix.expand(batch, steps - 1, size, size)) if by_step else Dense(matrix)
    return prior, transition, Potentials.of(potentials), lengths


@torch.no_grad()
def infer(
    chains: Chains,
    emission: LogLinear,
    tokens: Tensor,
    lengths: Tensor,
    sweeps: int = 10,
    bound: str = "tilted",
    field: Field | None = None,
) -> Inferred:
    """The mean field of sentences [B, T] after some sweeps over the layers, optionally initialised from `field`."""
    found = []
    for part in blocks(lengths, emission):
        steps = int(lengths[part].max())
        before = None if field is None else Field(*(value[part, :steps] for value in field))
        found.append(ascend(Ascent(chains, emission, tokens[part, :steps], lengths[part], bound, before), sweeps))
    return Inferred.joined(found, tokens.shape[1])


def ascend(ascent: Ascent, sweeps: int) -> Inferred:
    """Run some sweeps over the layers, and return only what is needed afterwards."""
    for _ in range(sweeps):
        for m in range(len(ascent.tables)):
            ascent.update(m)
    return ascent.result()


def blocks(lengths: Tensor, emission: LogLinear) -> Iterator[slice]:
    """Slices of whole sentences, at least one each, whose tokens x words fit into the memory limit."""
    limit = HELD[emission.theta.device.type] // emission.num_words
    first = tokens = 0
    for b, length in enumerate(lengths.tolist()):
        if b > first and tokens + length > limit:
            yield slice(first, b)
            first, tokens = b, 0
        tokens += length
    yield slice(first, len(lengths))


@torch.no_grad()
def expect(chains: Chains, inferred: Inferred, lengths: Tensor, sizes: Sequence[int]) -> list[Counts]:
    """Expected starts [K_m] and transitions [K_m, K_m] of every layer under q, summed over the batch."""
    parts = inferred.potentials.split(tuple(sizes), -1)
    found = (discrete.counts(*chain(chains, m, part, lengths))[0] for m, part in enumerate(parts))
    return [c._replace(transition=c.transition.reshape(-1, len(c.start), len(c.start)).sum(0)) for c in found]


@torch.no_grad()
def sampled_log_likelihood(
    chains: Chains,
    emission: LogLinear,
    tokens: Tensor,
    lengths: Tensor,
    inferred: Inferred,
    samples: int = 100,
    generator: torch.Generator | None = None,
) -> Tensor:
    """log p(x) of each sentence by importance sampling from q, [B]: a consistent estimate with a downward bias.

    The transition probabilities of the chains cancel between p and q, so the weight of a path is the product of
    p(x_t | z_t) / exp(potentials) over t, times the chains' normalisers."""
    weights = torch.zeros(samples, len(tokens), dtype=torch.float64, device=tokens.device)
    seen = (torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(-1)) & (tokens >= 0)
    words = tokens[seen]
    parts = inferred.potentials.split(emission.sizes, -1)
    sentence = torch.arange(len(tokens), device=tokens.device).unsqueeze(-1).expand_as(tokens)[seen]
    for draw in weights:
        value, states = emission.bias[words], []
        for m, (part, scores) in enumerate(zip(parts, emission.layers(), strict=True)):
            path = discrete.sample_posterior(*chain(chains, m, part, lengths), generator=generator)[seen]
            value = value + (scores[words] - part[seen]).gather(-1, path.unsqueeze(-1)).squeeze(-1)
            states.append(path)
        value = value - emission.log_partition_at(torch.stack(states, -1))
        draw.index_add_(0, sentence, value.double())
    return weights.logsumexp(0) - torch.tensor(samples).log() + inferred.log_norms.sum(-1)
