"""Brute-force references in float64, which enumerate all paths of states or all sentences."""

from __future__ import annotations

from functools import cached_property
from itertools import product

import numpy as np
from scipy import stats

SMALLEST_P = 1e-4  # a sampler fails if the p-value of its chi-square test is lower
SMALLEST_CELL = 5.0  # cells with fewer expected samples are pooled


class Paths:
    """All paths of K states through a sequence of T observations, with weights p(path, observations).

    They are computed from a prior [K], transition matrices [T-1, K, K] and potentials [T, K], which are the
    probabilities of the observations in each state."""

    def __init__(self, prior: np.ndarray, matrices: np.ndarray, potentials: np.ndarray) -> None:
        self.prior, self.matrices, self.potentials = prior, matrices, potentials
        self.num_steps, self.num_states = potentials.shape
        count = self.num_states**self.num_steps
        self.states = np.array(list(product(range(self.num_states), repeat=self.num_steps)), int).reshape(count, -1)
        self.weights = np.ones(count)
        for t, z in enumerate(self.states.T):
            self.weights *= potentials[t, z] * (prior[z] if t == 0 else matrices[t - 1, self.states[:, t - 1], z])

    @cached_property
    def likelihood(self) -> float:
        """The probability of the observations."""
        return float(self.weights.sum())

    @cached_property
    def posterior(self) -> np.ndarray:
        """p(path | observations) of every path: [K^T]; zero if the observations are impossible."""
        return self.weights / self.likelihood if self.likelihood > 0 else np.zeros_like(self.weights)

    def weight(self, path: np.ndarray) -> float:
        """p(path, observations) of one path [T]."""
        return float(self.weights[(self.states == path).all(1)].item())

    def smoothed(self) -> np.ndarray:
        """p(state at t | all observations) of every step t: [T, K]."""
        return self.onehot().transpose(1, 2, 0) @ self.posterior

    def pairs(self) -> np.ndarray:
        """p(states at t and t + 1 | all observations) of every step t but the last: [T-1, K, K]."""
        onehot = self.onehot()
        return np.einsum("pti,ptj,p->tij", onehot[:, :-1], onehot[:, 1:], self.posterior)

    def onehot(self) -> np.ndarray:
        """All paths, one-hot: [K^T, T, K]."""
        return np.eye(self.num_states)[self.states]

    def prefix(self, steps: int) -> Paths:
        """The paths of the first `steps` steps."""
        return Paths(self.prior, self.matrices[: max(steps - 1, 0)], self.potentials[:steps])

    def without(self, step: int) -> Paths:
        """The same sequence with the observation of one step missing."""
        potentials = self.potentials.copy()
        potentials[step] = 1.0
        return Paths(self.prior, self.matrices, potentials)

    def filtered(self) -> np.ndarray:
        """p(state at t | observations up to t) of every step t: [T, K]."""
        return np.array([self.prefix(t + 1).smoothed()[t] for t in range(self.num_steps)]).reshape(-1, self.num_states)

    def cavity(self) -> np.ndarray:
        """p(state at t | all observations except that at t) of every step t: [T, K]."""
        return np.array([self.without(t).smoothed()[t] for t in range(self.num_steps)])

    def log_norms(self) -> np.ndarray:
        """The log-probability of each observation given those before it, -inf from the first impossible one on: [T]."""
        evidence = np.array([self.prefix(t).likelihood for t in range(self.num_steps + 1)])
        return log(np.divide(evidence[1:], evidence[:-1], out=np.zeros(self.num_steps), where=evidence[:-1] > 0))


def log(values: np.ndarray | float) -> np.ndarray:
    """The logarithm, without a warning about zeros."""
    with np.errstate(divide="ignore"):
        return np.log(values)


def sentences(prior: np.ndarray, matrices: np.ndarray, emission: np.ndarray) -> np.ndarray:
    """The probabilities of all sentences of T words, an array of T axes with V entries each.

    prior: [K]; matrices: one transition matrix per step, [T-1, K, K]; emission: p(word | state), [K, V]."""
    chain = Paths(prior, matrices, np.ones((len(matrices) + 1, len(prior))))
    total = np.zeros((emission.shape[1],) * chain.num_steps)
    for path, weight in zip(chain.states, chain.weights, strict=True):
        joint = np.array(weight)
        for state in path:
            joint = joint[..., None] * emission[state]
        total += joint
    return total


def completions(tokens: np.ndarray, words: list[int]) -> list[list[int]]:
    """The possible words at each position: any of `words` where the token is -1."""
    return [words if word < 0 else [word] for word in tokens.tolist()]


def marginal(joint: np.ndarray, tokens: np.ndarray, words: list[int] | None = None) -> float:
    """The probability of the observed words of a sentence; tokens of -1 are summed out over `words`, by default all."""
    choices = completions(tokens, list(range(joint.shape[0])) if words is None else words)
    return float(joint[np.ix_(*choices)].sum())


def chi_square(draws: np.ndarray, probs: np.ndarray) -> float:
    """The p-value of a chi-square test that samples [n] (indices of cells) have the probabilities `probs` [cells].

    It is zero if an impossible cell occurs."""
    observed = np.bincount(draws, minlength=len(probs)).astype(float)
    if observed[probs == 0].any():
        return 0.0
    expected = probs * len(draws)
    large = expected >= SMALLEST_CELL
    observed = np.append(observed[large], observed[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    used = expected > 0
    if used.sum() < 2:
        return 1.0
    return float(stats.chisquare(observed[used], expected[used] * observed.sum() / expected.sum()).pvalue)


def cells(rows: np.ndarray, base: int) -> np.ndarray:
    """The index in `Paths.states` of each of n paths [n, T]: [n]."""
    return rows @ base ** np.arange(rows.shape[1])[::-1]
