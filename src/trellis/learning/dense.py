"""The M-step of a DenseHMM: gradient ascent on the expected log-likelihood, which has no closed maximum."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from trellis.learning.descent import minimise
from trellis.params.embedding import ROLES, EmbeddingParams
from trellis.types import Counts


def expected_log_likelihood(params: EmbeddingParams, counts: Counts) -> Tensor:
    """sum of expected counts times log-probabilities, of each model: [...].

    counts.emission is [..., n, m]; it is left out where the emission is not composed of vectors."""
    total = (counts.start * params.log_start()).sum(-1) + (counts.transition * params.log_transition()).sum((-2, -1))
    return total if params.v is None else total + (counts.emission * params.log_emission()).sum((-2, -1))


def maximise(
    params: EmbeddingParams,
    counts: Counts,
    steps: int = 25,
    optimizer: str = "adam",
    lr: float = 0.01,
    roles: Iterable[str] = ROLES,
) -> None:
    """Raise the expected log-likelihood of each model; it never falls, so neither does the likelihood.

    Where no step has gained anything, shorter ones are tried."""
    weights = params.weights(roles)
    size = counts.transition.sum((-2, -1)) + counts.start.sum(-1)
    for rate in (lr, lr / 10, lr / 100):
        result = minimise(weights, lambda: -expected_log_likelihood(params, counts) / size, steps, optimizer, rate)
        if bool((result.best < result.history[0]).all()):
            break


def stack_counts(counts: Iterable[Counts]) -> Counts:
    """Counts of several models side by side."""
    return Counts(*(torch.stack(values) for values in zip(*counts, strict=True)))
