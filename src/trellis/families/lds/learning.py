"""Learn an LDS from a text: count once, identify the subspace, then refine by EM on the counts alone."""

import logging
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch

from trellis.corpus import Split, Vocabulary
from trellis.corpus.moments import Moments, choose_rows, count_moments
from trellis.errors import TrellisError
from trellis.families.lds.asos import expect, update
from trellis.families.lds.config import LDSConfig
from trellis.families.lds.covariance import Covariances
from trellis.families.lds.model import LDS
from trellis.families.lds.parameters import Parameters, restrict_noise
from trellis.families.lds.subspace import identify, random_start

STARTS: dict[str, Callable[[Covariances, int, int, int], dict[str, Parameters]]] = {  # dim, blocks and seed
    "subspace": identify,
    "random": lambda covariances, dim, blocks, seed: {"random": random_start(covariances, dim, seed)},
}
TRIAL = 3  # EM iterations to compare the initial candidates
log = logging.getLogger(__name__)


class Fit(NamedTuple):
    """A model, and its nats per token on the training text."""

    log_likelihood: float
    model: LDS


def count_text(vocab: Vocabulary, split: Split, blocks: int, horizon: int, words: int = 0) -> Moments:
    """Count the co-occurrences of the `words` most frequent words (all if 0), which are needed for learning."""
    lags = max(2 * blocks - 1, horizon)
    if split.tokens.size < 2 * lags:
        raise TrellisError(f"The text has {split.tokens.size:,} tokens; a lag of {lags} needs at least {2 * lags}.")
    rows = choose_rows(np.bincount(split.tokens, minlength=len(vocab)), words)
    return count_moments(split.tokens, rows, lags)


def fit_lds(
    vocab: Vocabulary, moments: Moments, dim: int = 100, iterations: int = 10, seed: int = 0, **settings: Any
) -> LDS:
    """Learn an LDS by subspace identification and up to `iterations` iterations of EM, fewer if an update fails.

    `settings` are the other options of `LDSConfig`. `pseudocounts` per word reduce the scale of rare words. The
    pseudocounts of `noise_prior` increase the noise and prevent overfitting of rare words. Simpler types of `noise`
    (see `parameters.NOISES`), unwhitened words and a random `init` are available for comparison."""
    config = LDSConfig(dim=dim, **settings)
    covariances = lagged_covariances(moments, config)
    parameters = begin_lds(covariances, config, seed)
    *_, last = islice(improve(vocab, covariances, parameters, config), iterations + 1)
    return last.model


def lagged_covariances(moments: Moments, config: LDSConfig) -> Covariances:
    """The lagged covariances of a text from its counts, with the configured pseudocounts."""
    return Covariances(moments, config.pseudocounts, config.noise_prior, config.whiten)


def begin_lds(covariances: Covariances, config: LDSConfig, seed: int) -> Parameters:
    """The initial parameters of EM."""
    found = STARTS[config.init](covariances, config.dim, config.blocks, seed)
    candidates = {name: restrict_noise(one, covariances.coordinates, config.noise) for name, one in found.items()}
    return best_start(candidates, covariances, config)


def improve(vocab: Vocabulary, covariances: Covariances, parameters: Parameters, config: LDSConfig) -> Iterator[Fit]:
    """Yield the LDS of these parameters, then one per EM iteration, until an update fails."""
    moments = covariances.moments
    rows, counts = torch.from_numpy(moments.rows), torch.from_numpy(moments.counts)
    for number in count(1):
        statistics = expect(parameters, covariances, config.horizon)
        spread = torch.from_numpy(statistics.smoothed)
        model = LDS(vocab, rows, counts, parameters, spread, *covariances.tempering)
        yield Fit(statistics.log_likelihood, model)
        try:
            parameters = update(statistics, covariances, config.noise)
        except TrellisError as problem:
            log.info("EM stopped before iteration %d: %s", number, problem)
            return


def best_start(candidates: dict[str, Parameters], covariances: Covariances, config: LDSConfig) -> Parameters:
    """The candidate with the highest likelihood after a few EM iterations."""
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    reached = {}
    for name, parameters in candidates.items():
        try:
            for _ in range(TRIAL):
                statistics = expect(parameters, covariances, config.horizon)
                parameters = update(statistics, covariances, config.noise)
            reached[name] = statistics.log_likelihood
        except TrellisError as problem:
            log.info("Skipped the initialisation %r: %s", name, problem)
    if not reached:
        raise TrellisError("No valid initialisation for EM; use a smaller model.dim, or a larger model.noise_prior.")
    return candidates[max(reached, key=reached.__getitem__)]
