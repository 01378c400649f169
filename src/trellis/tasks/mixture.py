"""Linear mixtures of next-token distributions, and the unigram cache, which can be a component of a mixture."""

import numpy as np

GAIN, ITERATIONS = 1e-9, 5000  # EM for the weights stops at a smaller gain, in nats per token
DECAYS = tuple(1 - 1 / tokens for tokens in (50, 100, 200, 500, 1000, 2000, 5000, 10_000))  # tried for the cache


def interpolate(log_probs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """log p of every token under the mixture, [tokens], given log p under each model, [models, tokens]."""
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(np.log(weights)[:, None] + log_probs, 0)


def fit_weights(log_probs: np.ndarray) -> np.ndarray:
    """Maximum-likelihood mixture weights [models] given log p [models, tokens]. The mixture is never worse than the
    best model.

    Fitted by EM from equal weights; the likelihood is concave, so EM finds the maximum."""
    best = log_probs.max(0)
    possible = best > -np.inf
    probs = np.exp(log_probs[:, possible] - best[possible])  # relative to the best model
    weights, reached, gain = np.full(len(probs), 1 / len(probs)), -np.inf, np.inf
    for _ in range(ITERATIONS * bool(possible.any())):
        if gain < GAIN:
            break
        before, (weights, reached) = reached, em_step(probs, weights)
        gain = reached - before
    return max((weights, *np.eye(len(probs))), key=lambda w: interpolate(log_probs[:, possible], w).sum())


def em_step(probs: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """The mean responsibility of each model [models], and the mean log p under the old weights."""
    mixed = weights @ probs
    return weights * (probs / mixed).mean(1), float(np.log(mixed).mean())


def cache_log_probs(tokens: np.ndarray, decay: float, num_words: int) -> np.ndarray:
    """log p of every token under a unigram cache: [tokens]. The cache predicts a token by its relative frequency in the
    preceding text, where a token n tokens back counts `decay` ** n. The first token is uniformly distributed."""
    counts, last, total = [0.0] * num_words, [0] * num_words, 0.0
    probs = np.empty(len(tokens))
    for place, word in enumerate(tokens.tolist()):
        counts[word] *= decay ** (place - last[word])
        probs[place] = counts[word] / total if place else 1 / num_words
        counts[word], last[word] = counts[word] + 1, place
        total = (total + 1) * decay
    with np.errstate(divide="ignore"):
        return np.log(probs)


def fit_cache(log_probs: np.ndarray, tokens: np.ndarray, num_words: int) -> tuple[float, np.ndarray]:
    """The decay of a unigram cache, and the weights [models + 1] of its mixture with models [models, tokens], that
    maximise the likelihood of a text."""

    def fitted(decay: float) -> tuple[float, float, np.ndarray]:
        every = np.vstack([log_probs, cache_log_probs(tokens, decay, num_words)])
        weights = fit_weights(every)
        return float(interpolate(every, weights).sum()), decay, weights

    _, decay, weights = max((fitted(decay) for decay in DECAYS), key=lambda found: found[0])
    return decay, weights
