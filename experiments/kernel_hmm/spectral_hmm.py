"""Spectral learning on text from a random HMM: how the error falls with its length, and as an initialisation of EM."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from trellis.families.hmm.parameters import TableParams
from trellis.inference import discrete
from trellis.learning.em import expect
from trellis.learning.spectral import (
    SMOOTHING,
    ObservableOperators,
    Probabilities,
    by_anchors,
    by_cooccurrence,
    by_eigenvectors,
    initial,
    moments,
)
from trellis.parts import Prior
from trellis.transitions import Dense
from trellis.transitions.base import invert
from trellis.types import Belief, Potentials

STATES, SYMBOLS, LENGTH = 5, 20, 1000
TOKENS = (10_000, 100_000, 1_000_000)
METHODS = {"eigenvectors": by_eigenvectors, "anchors": by_anchors, "cooccurrence": by_cooccurrence}


class Error(NamedTuple):
    """Mean L1 distances of rows, with states matched by their emissions."""

    emission: float
    transition: float


def random_hmm(states: int, symbols: int, seed: int, concentration: float = 0.2) -> Probabilities:
    """An HMM with Dirichlet-distributed rows."""
    random = np.random.default_rng(seed)
    rows = [random.dirichlet(np.full(size, concentration), states) for size in (states, symbols)]
    return Probabilities(random.dirichlet(np.ones(states)), *rows)


def sampled(model: Probabilities, sequences: int, length: int, seed: int) -> NDArray[np.int64]:
    """Sample stationary text: [sequences, length]."""
    generator = torch.Generator().manual_seed(seed)
    _, transition, emission = model.tensors()
    start = torch.linalg.matrix_power(transition, 4096)[0]
    states = discrete.sample_prior(start, Dense(transition), sequences, length, generator)
    uniform = torch.rand(states.numel(), generator=generator, dtype=torch.float64)
    return invert(emission[states.flatten()], uniform).view(states.shape).numpy()


def error(found: Probabilities, truth: Probabilities) -> Error:
    distance = np.abs(found.emission[:, None] - truth.emission).sum(-1)
    ours, theirs = linear_sum_assignment(distance)
    moves = np.abs(found.transition[np.ix_(ours, ours)] - truth.transition[np.ix_(theirs, theirs)]).sum(-1)
    return Error(float(distance[ours, theirs].mean()), float(moves.mean()))


def fit(text: NDArray[np.int64], begin: Probabilities, rounds: int) -> float:
    """The log-likelihood of a text after rounds of EM."""
    params = TableParams(len(begin.start), begin.emission.shape[1]).double()
    params.set_probabilities(*begin.tensors())
    tokens, lengths = torch.from_numpy(text), torch.full((len(text),), text.shape[1])
    reached = -np.inf
    with torch.no_grad():
        for _ in range(rounds):
            counts, _ = expect(params.parts(), tokens, lengths)
            params.maximise(counts, Prior())
            reached = float(counts.log_likelihood)
    return reached


def study(seed: int, tokens: int) -> dict[str, float]:
    """The errors of the estimators; the nats per token of operators and of the true model on held-out text; and the
    fraction of negative probabilities."""
    model = random_hmm(STATES, SYMBOLS, seed)
    found = moments(sampled(model, tokens // LENGTH, LENGTH, seed), SYMBOLS)
    held_out = sampled(model, 1, 5 * LENGTH, seed + 1)
    scores = ObservableOperators(found, STATES).score(held_out[0])
    errors = {name: error(method(found, STATES), model) for name, method in METHODS.items()}
    stationary = model._replace(start=np.linalg.matrix_power(model.transition, 4096)[0])
    return {
        **{f"{name}_{what}": value for name, one in errors.items() for what, value in one._asdict().items()},
        "operators_nats": float(-scores.log_probs.mean()),
        "operators_negative": scores.negative / held_out.size,
        "truth_nats": -likelihood(stationary, held_out) / held_out.size,
    }


def likelihood(model: Probabilities, text: NDArray[np.int64]) -> float:
    start, transition, emission = model.tensors()
    potentials = Potentials(emission.log().T.contiguous(), torch.from_numpy(text))
    return float(discrete.log_likelihood(Belief(start.expand(len(text), -1)), Dense(transition), potentials).sum())


def starts(seed: int, tokens: int, rounds: int = 60, others: int = 10) -> dict[str, float]:
    """Nats per token of the text after EM, initialised by estimates and at random."""
    text = sampled(random_hmm(STATES, SYMBOLS, seed), tokens // LENGTH, LENGTH, seed)
    counted = moments(text, SYMBOLS)
    begun = fit(text, initial(counted, STATES), rounds)
    paired = fit(text, by_cooccurrence(counted, STATES).smoothed(SMOOTHING), rounds)
    random = [fit(text, random_hmm(STATES, SYMBOLS, 1000 + n, 1.0), rounds) for n in range(others)]
    return {
        "spectral": -begun / text.size,
        "cooccurrence": -paired / text.size,
        "best_random": -max(random) / text.size,
        "median_random": -float(np.median(random)) / text.size,
    }
