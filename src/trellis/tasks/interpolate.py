"""Linear interpolation of models: p(x_t | past) = sum_m w_m p_m(x_t | past), the weights fitted by EM."""

from __future__ import annotations

import numpy as np

GAIN, ITERATIONS = 1e-9, 5000  # EM ends with an iteration that gains less, in nats per token


def interpolate(log_probs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """log p of every token under the mixture, [tokens], from that under each model, [models, tokens]."""
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(np.log(weights)[:, None] + log_probs, 0)


def fit_weights(log_probs: np.ndarray) -> np.ndarray:
    """The weights [models] under which tokens [models, tokens] are most probable; never worse than one model alone.

    EM from equal weights: the likelihood is concave, and every iteration raises it."""
    best = log_probs.max(0)
    possible = best > -np.inf
    probs = np.exp(log_probs[:, possible] - best[possible])  # relative to the best model's
    weights, reached, gain = np.full(len(probs), 1 / len(probs)), -np.inf, np.inf
    for _ in range(ITERATIONS * bool(possible.any())):
        if gain < GAIN:
            break
        before, (weights, reached) = reached, em_step(probs, weights)
        gain = reached - before
    return max((weights, *np.eye(len(probs))), key=lambda w: interpolate(log_probs[:, possible], w).sum())


def em_step(probs: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """The share of the tokens [models] that each model answers for, and the mean log p under the old weights."""
    mixed = weights @ probs
    return weights * (probs / mixed).mean(1), float(np.log(mixed).mean())
