"""Small texts, and the truth about their linear dynamical systems with everything written out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trellis.corpus.moments import Moments, choose_rows, count_moments
from trellis.families.lds.asos import expect, update
from trellis.families.lds.covariance import Covariances
from trellis.families.lds.parameters import Parameters, Whitening


def markov_text(seed: int = 0, words: int = 12, states: int = 4, tokens: int = 4000) -> np.ndarray:
    """Word ids that a hidden Markov chain has written."""
    generator = np.random.default_rng(seed)
    moves = generator.dirichlet(np.full(states, 0.4), size=states).cumsum(1)
    says = (0.97 * generator.dirichlet(np.full(words, 0.4), size=states) + 0.03 / words).cumsum(1)
    state, text = 0, np.empty(tokens, np.int64)
    for t, (move, say) in enumerate(generator.random((tokens, 2))):
        state = min(int(np.searchsorted(moves[state], move)), states - 1)
        text[t] = min(int(np.searchsorted(says[state], say)), words - 1)
    return text


def counted(text: np.ndarray, lags: int, circular: bool = True) -> Moments:
    return count_moments(text, choose_rows(np.bincount(text)), lags, circular)


def one_hot(text: np.ndarray, moments: Moments, coordinates: Whitening) -> np.ndarray:
    """w_t = W (e - mu): [T, n]."""
    return (np.eye(len(moments.counts))[moments.rows[text]] - coordinates.frequency) * coordinates.scale


class Dense(NamedTuple):
    """Matrices that the library never writes out."""

    basis: np.ndarray  # [n, n - 1], orthonormal: the space the words live in
    noise: np.ndarray  # D
    predicted: np.ndarray  # Sigma_1
    innovation: np.ndarray  # S = C Sigma_1 C' + D
    gain: np.ndarray  # K = Sigma_1 C' S^+


def written_out(parameters: Parameters, coordinates: Whitening) -> Dense:
    A, C, E, _ = parameters
    smooth = coordinates.variance
    noise = np.diag(smooth) - np.outer(smooth, smooth) / smooth.sum()
    D = coordinates.scale[:, None] * noise * coordinates.scale - C @ E @ C.T
    basis = np.linalg.svd(coordinates.null[:, None])[0][:, 1:]
    predicted = np.eye(len(A))
    for _ in range(500):
        S = basis.T @ (C @ predicted @ C.T + D) @ basis
        gain = predicted @ C.T @ basis @ np.linalg.inv(S) @ basis.T
        predicted = A @ (predicted - gain @ C @ predicted) @ A.T + np.eye(len(A))
    S = C @ predicted @ C.T + D
    return Dense(basis, D, predicted, S, predicted @ C.T @ basis @ np.linalg.inv(basis.T @ S @ basis) @ basis.T)


def log_density(errors: np.ndarray, dense: Dense, coordinates: Whitening) -> np.ndarray:
    """log N(e_t; 0, S) on the n - 1 dimensions of the one-hot vectors themselves: [T]."""
    n = len(coordinates.scale)
    basis = np.linalg.svd(np.full((n, 1), n**-0.5))[0][:, 1:]
    S = basis.T @ (dense.innovation / coordinates.scale[:, None] / coordinates.scale) @ basis
    inside = (errors / coordinates.scale) @ basis
    distance = (inside * np.linalg.solve(S, inside.T).T).sum(1)
    return -0.5 * ((n - 1) * np.log(2 * np.pi) + np.linalg.slogdet(S)[1] + distance)


class Step(NamedTuple):
    """One iteration of EM: the log-likelihood before it, and the parameters after it."""

    log_likelihood: float
    parameters: Parameters


def learn(parameters: Parameters, covariances: Covariances, horizon: int, noise: str = "full") -> Iterator[Step]:
    """Iterate EM indefinitely."""
    while True:
        statistics = expect(parameters, covariances, horizon)
        parameters = update(statistics, covariances, noise)
        yield Step(statistics.log_likelihood, parameters)
