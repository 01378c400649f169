"""How well an HMM of symbols reproduces data: their co-occurrences, and the likelihood of sequences; and how many
parameters it has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from trellis.emissions import Categorical
from trellis.inference import discrete
from trellis.inference.stationary import long_run
from trellis.learning.cooccurrence import count_pairs
from trellis.learning.spectral import Probabilities
from trellis.transitions import Dense

Array = np.ndarray[Any, Any]


def analytic(model: Probabilities) -> Array:
    """p(symbol i, then symbol j) in the long run: [V, V]."""
    start, transition, emission = model.tensors()
    return (emission.T @ (long_run(start, transition)[:, None] * transition) @ emission).numpy()


def counted(symbols: Array, lengths: Array, size: int) -> Array:
    """Relative frequencies of neighbouring symbols in concatenated sequences [N]: [size, size]."""
    counts = count_pairs(symbols, lengths, size).toarray()
    return counts / counts.sum()


def draw(model: Probabilities, lengths: Array, seed: int = 0) -> Array:
    """Sample sequences of these lengths from the model, concatenated: [N]."""
    generator = torch.Generator().manual_seed(seed)
    start, transition, emission = model.tensors()
    states = discrete.sample_prior(start, Dense(transition), len(lengths), int(max(lengths)), generator)
    symbols = Categorical(emission.T.log(), None, len(start)).sample(states, generator).numpy()
    return symbols[np.arange(symbols.shape[1]) < np.asarray(lengths)[:, None]]


def sampled(model: Probabilities, lengths: Array, seed: int = 0) -> Array:
    """The relative frequencies in sequences of these lengths sampled from the model: [V, V]."""
    return counted(draw(model, lengths, seed), np.asarray(lengths), model.emission.shape[1])


def mean_absolute_deviation(one: Array, other: Array) -> float:
    """The co-occurrence MAD of two matrices [V, V]."""
    return float(np.abs(one - other).mean())


def normalised_nll(log_likelihood: float, lengths: Array) -> float:
    """-log p over the number of sequences and the length of the longest."""
    return -log_likelihood / (len(lengths) * int(max(lengths)))


def standard_freedom(states: int, symbols: int) -> int:
    """Degrees of freedom of a standard HMM."""
    return states**2 + states * (symbols - 1) - 1


def dense_freedom(states: int, symbols: int, length: int, emission_length: int | None = None) -> int:
    """Degrees of freedom of a DenseHMM: l (3n + m + 1) if both lengths are l."""
    return length * (2 * states + 1) + (emission_length or length) * (states + symbols)


def fair_states(states: int, symbols: int, length: int, emission_length: int | None = None) -> int:
    """n_fair: the number of states of a standard HMM with degrees of freedom nearest to those of a DenseHMM."""
    half = (symbols - 1) / 2
    return max(1, round(math.sqrt(half**2 + 1 + dense_freedom(states, symbols, length, emission_length)) - half))
