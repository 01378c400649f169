"""An LDS from a text: count once, identify the subspace, improve it by EM that sees the counts alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

import numpy as np
import torch

from trellis.config import suggestion
from trellis.corpus import Split, Vocabulary
from trellis.corpus.moments import Moments, choose_rows, count_moments
from trellis.emissions.onehot import IndefiniteError
from trellis.errors import TrellisError
from trellis.learning.asos import expect, learn, restrict_noise
from trellis.learning.covariance import Covariances
from trellis.learning.subspace import identify, random_start
from trellis.models.lds import LDS
from trellis.params.lds import Parameters

STARTS: dict[str, Callable[[Covariances, int, int, int], dict[str, Parameters]]] = {  # dim, blocks and seed
    "subspace": identify,
    "random": lambda covariances, dim, blocks, seed: {"random": random_start(covariances, dim, seed)},
}
TRIAL = 3  # iterations of EM that compare the candidates to start from
Watch = Callable[[int, float, LDS], bool]  # told the iteration, the training text's log-likelihood and the model
log = logging.getLogger(__name__)


def count_text(vocab: Vocabulary, split: Split, blocks: int, horizon: int, words: int = 0) -> Moments:
    """The counts that the learning needs, of the `words` commonest words (0: all)."""
    lags = max(2 * blocks - 1, horizon)
    if split.tokens.size < 2 * lags:
        raise TrellisError(f"The text has {split.tokens.size:,} tokens; words {lags} apart need at least {2 * lags}.")
    rows = choose_rows(np.bincount(split.tokens, minlength=len(vocab)), words)
    return count_moments(split.tokens, rows, lags)


def fit_lds(
    vocab: Vocabulary,
    moments: Moments,
    dim: int = 100,
    iterations: int = 10,
    blocks: int = 4,
    horizon: int = 7,
    pseudocount: float = 0.0,
    prior: float = 0.0,
    seed: int = 0,
    watch: Watch | None = None,
    noise: str = "full",
    whiten: bool = True,
    start: str = "subspace",
) -> LDS:
    """Subspace identification and `iterations` of EM.

    `pseudocount` of each word tempers the whitening, `prior` of each word adds to the noise and keeps rare words from
    being overfitted. Where `watch` says True, learning ends with the model it was shown; it
    ends early where EM can go no further. Simpler kinds of `noise` (see `asos.NOISES`), words that are not whitened and
    a random start are there for comparison."""
    if start not in STARTS:
        raise TrellisError(f"The start {start!r} of an LDS is not known{suggestion(start, STARTS)}")
    if min(dim, blocks - 1, horizon) < 1:
        raise TrellisError("An LDS needs model.dim and model.horizon of one or more, and model.blocks of two or more.")
    covariances = Covariances(moments, pseudocount, prior, whiten)

    def model(parameters: Parameters, spread: np.ndarray) -> LDS:
        tables = torch.from_numpy(moments.rows), torch.from_numpy(moments.counts)
        return LDS(vocab, *tables, parameters, torch.from_numpy(spread), pseudocount, prior, whiten)

    found = STARTS[start](covariances, dim, blocks, seed)
    candidates = {name: restrict_noise(one, covariances.coordinates, noise) for name, one in found.items()}
    last = best_start(candidates, covariances, horizon, noise)
    steps = learn(last, covariances, horizon, noise=noise)
    for number in range(iterations):
        try:
            step = next(steps)
        except IndefiniteError as problem:
            log.info("EM ends before iteration %d: %s", number + 1, problem)
            break
        if watch and watch(number, step.log_likelihood, model(last, step.smoothed)):
            break
        last = step.parameters
    return model(last, expect(last, covariances, horizon).smoothed)


def best_start(
    candidates: dict[str, Parameters], covariances: Covariances, horizon: int, noise: str = "full"
) -> Parameters:
    """The candidate that a few steps of EM make the likeliest."""
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    reached = {}
    for name, parameters in candidates.items():
        try:
            trial = islice(learn(parameters, covariances, horizon, noise=noise), TRIAL)
            reached[name] = [step.log_likelihood for step in trial][-1]
        except IndefiniteError as problem:
            log.info("The start %r is left out: %s", name, problem)
    if not reached:
        raise TrellisError("No start for EM was found; use a smaller model.dim, or a model.noise_prior.")
    return candidates[max(reached, key=reached.__getitem__)]
