"""Fitting a family's model: by training steps, or by a single function call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trellis.config import BatchConfig, RunConfig
from trellis.corpus import Batches, Documents, Sentences, Split, Streams
from trellis.models.base import PersistedModel
from trellis.models.files import UNTRAINED, save_model
from trellis.registry import resolve
from trellis.tasks.lm import READINGS, evaluate
from trellis.training.callbacks import Callback
from trellis.training.checkpoint import BEST, load_weights
from trellis.training.loop import fit
from trellis.training.metrics import VALID_PPL
from trellis.training.state import TrainState
from trellis.training.teacher import with_samples

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
    about: Mapping[str, Any] = field(default_factory=dict)  # what the model file says about the data


@dataclass
class Fitted:
    """A trained model and, if it was trained by steps, the training state."""

    model: PersistedModel
    state: TrainState = field(default_factory=TrainState)


def directly(job: Job) -> Fitted:
    """Call the learner, a function of the job."""
    config = job.config
    return resolve(config.family.learners[config.train.learner])(job)


def by_steps(job: Job, build: Callable[[RunConfig, Any], Any] | None = None) -> Fitted:
    """Train batch by batch and keep the weights with the lowest validation perplexity. `build` replaces the family's
    function of that name."""
    config, corpus = job.config, job.corpus
    torch.manual_seed(config.seed)
    model = (build or config.family.load("build"))(config, corpus).to(job.device)
    text = with_samples(corpus["train"], corpus.vocab, config, job.device)
    batches = BATCHES[config.batches.order](text, config.batches, config.seed)
    read = READINGS[config.batches.order]
    state = fit_steps(job, model, batches, lambda: evaluate(model, read(corpus["valid"])).perplexity)
    if not state.interrupted:
        model.finish(corpus["train"])
    return Fitted(model, state)


def fit_steps(
    job: Job, model: Any, batches: Batches, measure: Callable[[], float], name: str = VALID_PPL
) -> TrainState:
    """Run the training loop and load the weights with the lowest validation measure."""
    config = job.config.train
    if job.folder is not None:
        save_model(job.folder / UNTRAINED, model, dict(job.about))  # with a checkpoint, the model of an unfinished run
    make_learner = resolve(job.config.family.learners[config.learner])
    learner = make_learner(model, config, config.total_steps(len(batches)))
    state = fit(learner, batches, measure, config, job.folder, job.resume, name, job.callbacks)
    best = state.weights
    if job.folder is not None and (job.folder / BEST).exists():
        best = load_weights(job.folder / BEST, model.device)
    if best is not None:
        model.load_state_dict(best)
    model.eval()
    return state
