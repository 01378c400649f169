"""The common kind of run: an ordinary training run, evaluated and analysed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from experiments.analyses import analyse
from experiments.paper import Job, Outcome
from experiments.results import Figures, essence
from trellis.config import RunConfig, load_config
from trellis.corpus import load_corpus
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel
from trellis.models.files import FILE
from trellis.options import to_tables
from trellis.training.checkpoint import LAST
from trellis.training.metrics import VALID_ERROR, VALID_PPL
from trellis.training.run import CONFIG, train


def run_training(job: Job) -> Outcome:
    """Train, or resume training, and evaluate the model; only language models are analysed."""
    config, folder = job.config, job.folder / f"{job.run}.{job.config.seed}"
    if job.force:
        shutil.rmtree(folder, ignore_errors=True)
    refuse_another(config, folder)
    begun = time.monotonic()
    trained = train(config, folder, resume=True, report=False)
    if trained.interrupted:
        raise KeyboardInterrupt
    training: dict[str, Any] = {"seconds": time.monotonic() - begun}  # for a model that is not trained in steps
    if trained.training["step"] and trained.training["epoch"]:
        training = trained.training | {"valid": valid_by_epoch(trained.history)}
    figures: Figures = {**trained.scores.values} if trained.scores else {}
    errors: dict[str, str] = {}
    if isinstance(trained.model, LanguageModel) and "valid" in figures:
        more, errors = analyse(trained.model, config, load_corpus(config.data), job.analyses)
        figures |= more
    return Outcome(trained.model.about["corpus"], figures, training, errors)


def refuse_another(config: RunConfig, folder: Path) -> None:
    """Raise if the folder has a run with another configuration; only the duration may differ."""
    if any((folder / name).exists() for name in (LAST, FILE)):
        configs = load_config(folder / CONFIG), config
        if differ(*configs):
            raise TrellisError(f"{folder} contains a run with another configuration; --force starts again.")


def differ(one: RunConfig, other: RunConfig) -> bool:
    """Whether two configurations differ in more than seed, machine, duration and evaluation."""
    before, now = (to_tables(essence(config)) for config in (one, other))
    for tables in (before, now):
        tables["train"].pop("max_seconds", None)
    return before != now


def valid_by_epoch(history: list[dict[str, Any]]) -> list[float]:
    """The validation perplexity (for taggers, the percentage of wrong tags) after each epoch."""
    found = ((line["epoch"], line.get(name)) for line in history for name in (VALID_PPL, VALID_ERROR))
    return list({epoch: value for epoch, value in found if value is not None}.values())
