"""Train a linear dynamical system by EM, with early stopping on the validation text."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.families.lds.config import LDSConfig
from trellis.families.lds.covariance import Covariances
from trellis.families.lds.learning import begin_lds, count_text, improve, lagged_covariances
from trellis.families.lds.model import LDS
from trellis.models.files import FILE, load, read_model, save_model
from trellis.progress import progress
from trellis.tasks.scores import Scores
from trellis.training.checkpoint import BEST, LAST
from trellis.training.fit import Fitted, Job
from trellis.training.metrics import MetricsFile
from trellis.training.state import TrainState


@dataclass
class Moment:
    """A training checkpoint: the model after an iteration, and its validation log-likelihood."""

    iteration: int
    nats: float
    model: LDS

    def save(self, path: Path) -> None:
        save_model(path, self.model, {"iteration": self.iteration, "nats": self.nats})

    @classmethod
    def load(cls, path: Path) -> Self | None:
        if not path.exists():
            return None
        model = cast(LDS, read_model(path))
        return cls(**model.about, model=model)


def by_em(job: Job) -> Fitted:
    """At most train.epochs iterations of EM, fewer if train.patience iterations in a row do not improve the validation
    score.

    An interrupted run resumes from its last checkpoint, with identical results."""
    return fit(job, job.config.train.epochs)


def by_subspace(job: Job) -> Fitted:
    """Train by subspace identification alone, without EM."""
    return fit(job, 0)


def fit(job: Job, iterations: int) -> Fitted:
    if job.folder is not None and (job.folder / FILE).exists():
        model = load(job.folder, LDS, job.device)
        return Fitted(model, TrainState(**model.about["training"]))
    settings, begun = cast(LDSConfig, job.config.model), time.perf_counter()
    moments = count_text(job.corpus.vocab, job.corpus["train"], settings.blocks, settings.horizon, settings.max_words)
    best, history = improved(job, iterations, lagged_covariances(moments, settings))
    seconds, tokens = time.perf_counter() - begun, job.corpus["train"].tokens.size
    state = TrainState(step=best.iteration, tokens=tokens, seconds=seconds, outcome="iterations", history=history)
    return Fitted(best.model.to(job.device), state)


def evaluate(model: LDS, corpus: Corpus, run: RunConfig) -> Scores:
    """Gaussian nats per token of each split, and the gain over a memoryless Gaussian."""
    nats = {name: model.nats_per_token(corpus[name]) for name in corpus.splits}
    gain = {name: nats[name] - model.static_nats_per_token(corpus[name]) for name in nats}
    rows = [{"split": name, "nats": nats[name], "gain": gain[name]} for name in nats]
    values = {f"{what}_{name}": found[name] for what, found in (("nats", nats), ("gain", gain)) for name in nats}
    return Scores("Gaussian log density", values, rows, headline="gain_test")


def improved(job: Job, iterations: int, covariances: Covariances) -> tuple[Moment, list[dict[str, Any]]]:
    """The best model found by EM, and the metrics of each iteration."""
    begun, config, folder, corpus = time.perf_counter(), job.config, job.folder, job.corpus
    last, best = (Moment.load(folder / name) if folder else None for name in (LAST, BEST))
    if last is None or best is None:
        parameters, first = begin_lds(covariances, config.model, config.seed), 0
    else:
        parameters, first = last.model.parameters, last.iteration
    fits = improve(corpus.vocab, covariances, parameters, config.model)
    with (
        MetricsFile(folder and folder / "metrics.jsonl", first) as metrics,
        progress("EM", iterations, "iterations") as bar,
    ):
        saved = time.perf_counter()
        for number, (train, model) in zip(range(first, iterations + 1), fits, strict=False):
            last = Moment(number, model.to(job.device).nats_per_token(corpus["valid"]), model)
            seconds = time.perf_counter() - begun
            line = metrics.append(step=number, train_nats=train, valid_nats=last.nats, seconds=seconds)
            for callback in job.callbacks:
                callback.on_evaluation(TrainState(step=number, seconds=seconds), line)
            bar.update(train=train, valid=last.nats)
            bar.advance(number - bar.done)
            if best is None or last.nats > best.nats:
                best = last
            if config.train.patience and number - best.iteration >= config.train.patience:
                break
            if folder and 0 < config.train.checkpoint_seconds <= time.perf_counter() - saved:
                best.save(folder / BEST)
                last.save(folder / LAST)
                saved = time.perf_counter()
    assert best is not None
    return best, metrics.history
