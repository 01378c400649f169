"""Fitting a family's model: by training steps, or by a single function call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trellis import distributed
from trellis.config import BatchConfig, RunConfig
from trellis.corpus import Batches, Documents, Sentences, Split, Streams
from trellis.corpus.shards import open_shards
from trellis.errors import TrellisError
from trellis.models.base import PersistedModel
from trellis.models.files import UNTRAINED, save_model
from trellis.registry import resolve
from trellis.tasks.lm import evaluate_together
from trellis.training.callbacks import Callback
from trellis.training.checkpoint import BEST, load_weights
from trellis.training.loop import fit
from trellis.training.metrics import VALID_PPL
from trellis.training.state import TrainState
from trellis.training.teacher import teacher_of, with_samples

BATCHES: dict[str, Callable[[Split, BatchConfig, int], Batches]] = {
    "streams": lambda split, config, seed: Streams(split, config.lanes, config.window, seed, config.rotate),
    "sentences": lambda split, config, seed: Sentences(split, config.tokens, seed),
    "documents": lambda split, config, seed: Documents(split, config.lanes, config.window, seed),
}


@dataclass(frozen=True)
class Job:
    """A training job: configuration, data, run folder and callbacks."""

    config: RunConfig
    corpus: Any  # as returned by the family's `read`, usually a `Corpus`
    device: str
    folder: Path | None = None  # None: nothing is written
    resume: bool = False
    callbacks: Sequence[Callback] = ()
    about: Mapping[str, Any] = field(default_factory=dict)  # metadata for the model file


@dataclass
class Fitted:
    """A trained model and, if it was trained by steps, the training state."""

    model: PersistedModel
    state: TrainState = field(default_factory=TrainState)


def directly(job: Job) -> Fitted:
    """Train by calling the learner, which is a function of the job, once."""
    config = job.config
    if distributed.size() > 1:
        raise not_together(config)
    if getattr(config.data, "shards", ""):
        raise TrellisError(f"data.shards: the family {config.family.name} does not read shards; remove it.")
    return resolve(config.family.learners[config.train.learner])(job)


def by_steps(job: Job, build: Callable[[RunConfig, Any], Any] | None = None) -> Fitted:
    """Train batch by batch and keep the weights with the lowest validation perplexity. `build` replaces the family's
    function `build`."""
    config, corpus = job.config, job.corpus
    torch.manual_seed(config.seed)
    with distributed.one_at_a_time():  # word classes, samples of a teacher and sizes of shards are kept in the cache
        model = (build or config.family.load("build"))(config, corpus).to(job.device)
        batches = training_batches(config, corpus, job.device)
    measure = partial(evaluate_together, model, config.batches.order, corpus["valid"])
    state = fit_steps(job, model, batches, lambda: measure().perplexity)
    if not state.interrupted and distributed.is_first():
        model.finish(corpus["train"])
    return Fitted(model, state)


def training_batches(config: RunConfig, corpus: Any, device: str) -> Batches:
    """Batches of the shards, if there are any; otherwise of the training split, with samples of a teacher if there is
    one."""
    order, given = config.batches.order, config.batches
    if not config.data.shards:
        text = with_samples(corpus["train"], corpus.vocab, config, device)
        return BATCHES[order](text, given, config.seed)
    if order != "streams" or teacher_of(config):
        raise TrellisError('data.shards needs batches.order = "streams" and no train.teacher.')
    return open_shards(config.data.shards, corpus.vocab, corpus.recipe, given.lanes, given.window, config.seed)


def fit_steps(
    job: Job, model: Any, batches: Batches, measure: Callable[[], float], name: str = VALID_PPL
) -> TrainState:
    """Run the training loop, and load the weights with the lowest validation perplexity or other measure."""
    config = job.config.train
    make_learner = resolve(job.config.family.learners[config.learner])
    if distributed.size() > 1 and not getattr(make_learner, "runs_together", False):
        raise not_together(job.config)
    if batches.rows() and (lanes := job.config.batches.lanes) < (count := distributed.size()):
        raise TrellisError(f"batches.lanes is {lanes}: {count} processes need at least {count} lanes.")
    batches.share()
    if job.folder is not None and distributed.is_first():
        save_model(job.folder / UNTRAINED, model, dict(job.about))  # with a checkpoint, the model of an unfinished run
    learner = make_learner(model, config, config.total_steps(len(batches)))
    state = fit(learner, batches, measure, config, job.folder, job.resume, name, job.callbacks)
    best = state.weights
    if job.folder is not None:
        best = distributed.from_first(partial(best_weights, job.folder / BEST))
    if best is not None:
        model.load_state_dict(best)
    model.eval()
    return state


def best_weights(path: Path) -> dict[str, Tensor] | None:
    """The weights of a checkpoint; None if there is none."""
    return load_weights(path) if path.exists() else None


def not_together(config: RunConfig) -> TrellisError:
    """The error for a learner that runs in one process only."""
    what = f"train.learner = {config.train.learner!r} of the family {config.model.family}"
    return TrellisError(f"{what} runs in one process; start it without torchrun.")
