"""Layers of chains that speak together: the mean field of any number of sentences, and its uses (see ascent.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.families.factorial.ascent import BOUNDS, Ascent, Chains, Field, Inferred, chain
from trellis.families.factorial.loglinear import LogLinear
from trellis.families.factorial.slope import ENTRIES
from trellis.inference import discrete

__all__ = ["BOUNDS", "Ascent", "Chains", "Field", "Inferred", "chain", "expect", "infer", "sampled_log_likelihood"]


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
    """The mean field of sentences [B, T] after some sweeps over the layers, begun from `field` where one is given.

    Where tokens and lengths lie on the CPU, a GPU is never waited for."""
    found = []
    for part in blocks(lengths, emission):
        steps = int(lengths[part].max())
        before = None if field is None else Field(*(value[part, :steps] for value in field))
        found.append(ascend(Ascent(chains, emission, tokens[part, :steps], lengths[part], bound, before), sweeps))
    return Inferred.joined(found, tokens.shape[1])


def ascend(ascent: Ascent, sweeps: int) -> Inferred:
    """What some sweeps over the layers come to; the block's memory is free again afterwards."""
    for _ in range(sweeps):
        for m in range(len(ascent.tables)):
            ascent.update(m)
    return ascent.result()


def blocks(lengths: Tensor, emission: LogLinear) -> Iterator[slice]:
    """Runs of whole sentences whose tokens times the vocabulary stay within bounds; at least one sentence each."""
    limit = ENTRIES[emission.theta.device.type] // emission.num_words
    first = tokens = 0
    for b, length in enumerate(lengths.tolist()):
        if b > first and tokens + length > limit:
            yield slice(first, b)
            first, tokens = b, 0
        tokens += length
    yield slice(first, len(lengths))


class Moves(NamedTuple):
    """Expected starts and transitions of one layer."""

    start: Tensor  # [K_m]
    transition: Tensor  # [K_m, K_m]


@torch.no_grad()
def expect(chains: Chains, inferred: Inferred, lengths: Tensor, sizes: Sequence[int]) -> list[Moves]:
    """Expected starts and transitions of every layer under q, added up over the batch."""
    parts = inferred.potentials.split(tuple(sizes), -1)
    found = (discrete.counts(*chain(chains, m, part, lengths))[0] for m, part in enumerate(parts))
    return [Moves(c.start, c.transition.reshape(-1, len(c.start), len(c.start)).sum(0)) for c in found]


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
    """log p(x) of each sentence by importance sampling from q, [B]: on average beneath the truth, and rising to it.

    The chains' own probabilities are in p and in q, so a path weighs prod_t p(x_t | z_t) / exp(potentials) times the
    chains' normalisers."""
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
