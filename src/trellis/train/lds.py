"""Train a linear dynamical system: EM goes on while the validation text becomes likelier."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from trellis.config import RunConfig
from trellis.corpus import Corpus
from trellis.families.files import FILE, load, read_about, save_model
from trellis.families.lds.covariance import Covariances
from trellis.families.lds.learning import begin_lds, count_text, improve, lagged_covariances
from trellis.families.lds.model import LDS
from trellis.progress import progress
from trellis.train.checkpoint import BEST, LAST
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


@dataclass
class Moment:
    """Where a training stands: the model of an iteration, and how likely it makes the validation text."""

    iteration: int
    nats: float
    model: LDS

    def save(self, path: Path) -> None:
        save_model(path, self.model, {"iteration": self.iteration, "nats": self.nats})

    @classmethod
    def load(cls, path: Path) -> Moment | None:
        return cls(**read_about(path), model=load(path)) if path.exists() else None


def train_lds(config: RunConfig, corpus: Corpus, device: str, folder: Path) -> tuple[LDS, Densities]:
    """At most train.epochs iterations of EM; with train.patience, no more after so many without a better valid text.

    A training that was stopped goes on from its last checkpoint, and ends with the same numbers."""
    if (folder / FILE).exists():
        known = read_about(folder)
        return load(folder), Densities(**{name: known[name] for name in Densities.__annotations__})
    settings, begun = config.model, time.perf_counter()
    moments = count_text(corpus.vocab, corpus["train"], settings.blocks, settings.horizon, settings.words)
    covariances = lagged_covariances(moments, settings)
    best = improved(config, corpus, covariances, device, folder)
    model, splits = best.model.to(device), ("train", "valid", "test")
    nats = {name: model.nats_per_token(corpus[name]) for name in splits}
    gain = {name: nats[name] - model.static_nats_per_token(corpus[name]) for name in splits}
    return model, Densities(nats, gain, best.iteration, time.perf_counter() - begun, moments.pairs)


def improved(config: RunConfig, corpus: Corpus, covariances: Covariances, device: str, folder: Path) -> Moment:
    """The best model that EM came by."""
    begun = time.perf_counter()
    iterations = 0 if config.train.learner == SUBSPACE else config.train.epochs
    last, best = (Moment.load(folder / name) for name in (LAST, BEST))
    if last is None or best is None:
        parameters, first = begin_lds(covariances, config.model, config.seed), 0
    else:
        parameters, first = last.model.parameters, last.iteration
    fits = improve(corpus.vocab, covariances, parameters, config.model)
    with (
        MetricsFile(folder / "metrics.jsonl", first) as metrics,
        progress("EM", iterations, "iterations") as bar,
    ):
        saved = time.perf_counter()
        for number, (train, model) in zip(range(first, iterations + 1), fits, strict=False):
            last = Moment(number, model.to(device).nats_per_token(corpus["valid"]), model)
            metrics.append(step=number, train_nats=train, valid_nats=last.nats, seconds=time.perf_counter() - begun)
            bar.update(train=train, valid=last.nats)
            bar.advance()
            if best is None or last.nats > best.nats:
                best = last
            if config.train.patience and number - best.iteration >= config.train.patience:
                break
            if 0 < config.train.checkpoint_seconds <= time.perf_counter() - saved:
                best.save(folder / BEST)
                last.save(folder / LAST)
                saved = time.perf_counter()
    assert best is not None
    return best
