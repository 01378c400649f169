"""Train a linear dynamical system: EM goes on while the validation text becomes likelier."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.learning.lds import count_text, fit_lds
from trellis.models.lds import LDS
from trellis.progress import progress
from trellis.train.metrics import MetricsFile

SUBSPACE = "subspace"  # the learner that stops before EM


@dataclass
class Densities:
    """Gaussian nats per token of each split, and how many more than those of words drawn one by one."""

    nats_per_token: dict[str, float]
    gain: dict[str, float]
    iterations: int
    seconds: float
    pairs: int  # distinct pairs of words in the counts


def train_lds(config: RunConfig, corpus: Corpus, device: str, folder: Path) -> tuple[LDS, Densities]:
    """At most train.epochs iterations of EM; with train.patience, no more after so many without a better valid text."""
    settings, begun, splits = config.model, time.perf_counter(), ("train", "valid", "test")
    moments = count_text(corpus.vocab, corpus["train"], settings.blocks, settings.horizon, settings.words)
    tried: list[tuple[float, LDS]] = []  # nats per token of the validation text, and the model

    def better(model: LDS) -> float:
        model = model.to(device)
        tried.append((model.nats_per_token(corpus["valid"]), model))
        return tried[-1][0]

    def best() -> int:
        return max(range(len(tried)), key=lambda i: tried[i][0])

    with (
        MetricsFile(folder / "metrics.jsonl", 0) as metrics,
        progress("EM", config.train.epochs, "iterations") as bar,
    ):

        def watch(number: int, train: float, model: LDS) -> bool:
            valid = better(model)
            metrics.append(step=number, train_nats=train, valid_nats=valid, seconds=time.perf_counter() - begun)
            bar.advance()
            bar.update(train=train, valid=valid)
            return bool(config.train.patience) and number - best() >= config.train.patience

        iterations = 0 if config.train.learner == SUBSPACE else config.train.epochs
        better(
            fit_lds(
                corpus.vocab, moments, settings.dim, iterations, settings.blocks, settings.horizon,
                settings.pseudocounts, settings.noise_prior, config.seed, watch,
                settings.noise, settings.whiten, settings.begin,
            )
        )  # fmt: skip
    seconds = time.perf_counter() - begun
    chosen = best()
    model = tried[chosen][1]
    nats = {name: model.nats_per_token(corpus[name]) for name in splits}
    gain = {name: nats[name] - model.static_nats_per_token(corpus[name]) for name in splits}
    return model, Densities(nats, gain, chosen, seconds, moments.pairs)
