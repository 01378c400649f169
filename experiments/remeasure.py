"""Measure the memory of training steps for results that lack it. This needs no training: the weights do not matter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments import analyses
from experiments.experiment import Experiment
from experiments.results import Result, read_result, source_hash, write_result
from trellis.config import RunConfig
from trellis.corpus import load_corpus
from trellis.devices import choose_device
from trellis.errors import TrellisError
from trellis.families.hmm.model import build

MEMORY = "memory"


def lacking(folder: Path) -> list[Path]:
    """The results of runs in which the analysis of memory failed."""
    found = sorted(folder.glob("*.json"))
    return [path for path in found if MEMORY in read_result(path).errors]


def measure_memory(experiment: Experiment, path: Path) -> Result:
    """Measure the memory of a run and add it to the result, with a hash of the library's present source."""
    result = read_result(path)
    config = experiment.config(result.run, seed=result.seed)
    if not isinstance(config, RunConfig) or not result.is_of(config):
        raise TrellisError(f"{path} is of another configuration than {result.run}.toml has now; run it again.")
    corpus = load_corpus(config.data)
    model = build(config, corpus).to(choose_device(config.device))
    figures = analyses.memory(model, config, corpus)
    if not figures:
        raise TrellisError("The memory of a training step is measured on a GPU, and there is none.")
    errors = {name: reason for name, reason in result.errors.items() if name != MEMORY}
    training = result.training | {"memory_source": source_hash()}
    result = replace(result, figures=result.figures | figures, errors=errors, training=training)
    write_result(path, result, config)
    return result
