"""Rows beyond one HMM: mixtures of trained runs, with an n-gram model and a unigram cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.paper import Job, Outcome
from experiments.results import Figures
from trellis.devices import choose_device
from trellis.models.base import LanguageModel
from trellis.models.files import load
from trellis.tasks.compare import Row, compare


@dataclass(frozen=True)
class MixtureRun:
    """All options of a mixture."""

    runs: str = ""  # run and seed of each model, as in "ptb-64k.0 ptb-64k.1"; they must have been trained
    ngram: int = 0  # order of an n-gram model of the training text; 0: none
    cache: bool = False
    seed: int = 0
    device: str = "auto"


def run_mixture(job: Job) -> Outcome:
    """Fit the mixture on the validation set, and score both sets."""
    config, device = job.config, choose_device(job.config.device)
    models = [load(job.folder / name, LanguageModel, device) for name in config.runs.split()]
    rows = {split: mixed(models, config, split, device) for split in ("valid", "test")}
    last = rows["test"]
    weights = {f"weight_{number}": weight for number, weight in enumerate(last.weights or [])}
    figures: Figures = {split: row.perplexity for split, row in rows.items()}
    figures |= weights | ({} if last.cache_decay is None else {"cache_decay": last.cache_decay})
    return Outcome(models[0].about["corpus"], figures)


def mixed(models: list[LanguageModel], config: MixtureRun, split: str, device: str) -> Row:
    """The mixture on one split; its weights are fitted on the validation set."""
    choices: dict[str, Any] = {"interpolate": not config.cache, "cache": config.cache, "ngram": config.ngram}
    return compare(models, None, split, contexts=0, device=device, **choices)[-1]
