"""Runs, one here or many in processes of their own: train, measure, and write one result each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import starmap
from pathlib import Path
from typing import Any

from experiments.analyses import analyse
from experiments.dense import run_dense
from experiments.experiment import Experiment
from experiments.results import Result, essence, hardware, read_result, result_path, source_hash, write_result
from experiments.tagging_run import run_tagging
from experiments.vectors import run_vectors
from trellis.config import RunConfig, load_config
from trellis.corpus import load_corpus
from trellis.devices import choose_device
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel
from trellis.models.files import FILE
from trellis.training.checkpoint import LAST
from trellis.training.metrics import VALID_ERROR, VALID_PPL
from trellis.training.run import CONFIG, Trained, train


@dataclass(frozen=True)
class Options:
    """How and where to run."""

    out: Path  # of the results
    runs: Path = Path("runs")  # of the trainings
    overrides: list[str] = field(default_factory=list)
    force: bool = False
    jobs: int = 1


def run_one(experiment: Experiment, run: str, seed: int, options: Options) -> Result:
    """Do a run, and write its result."""
    result = RUNNERS[experiment.kind_of(run)](experiment, run, seed, options)
    write_result(result_path(options.out, run, seed), result)
    return result


def run_training(experiment: Experiment, run: str, seed: int, options: Options) -> Result:
    """Train a run (or go on with its training), and measure it."""
    config = experiment.config(run, options.overrides, seed)
    folder = options.runs / experiment.name / f"{run}.{seed}"
    if options.force:
        shutil.rmtree(folder, ignore_errors=True)
    refuse_another(config, folder)
    begun = time.monotonic()
    trained = train(config, folder, resume=True)
    if trained.interrupted:
        raise KeyboardInterrupt
    seconds = time.monotonic() - begun
    return measured(trained, config, run, seconds, experiment.analyses(run), options.jobs)


def run_probe(experiment: Experiment, run: str, seed: int, options: Options) -> Result:
    """Learn vectors and probe them, beside those of other runs."""
    config = experiment.config(run, options.overrides, seed)
    others = {other: experiment.config(other, options.overrides, seed) for other in config.beside.split()}
    return run_vectors(config, others, run, options.jobs)


RUNNERS: dict[str, Callable[[Experiment, str, int, Options], Result]] = {
    "training": run_training,
    "dense": lambda experiment, run, seed, options: run_dense(
        experiment.config(run, options.overrides, seed), run, options.jobs
    ),
    "tagging": lambda experiment, run, seed, options: run_tagging(
        experiment.config(run, options.overrides, seed), run, options.runs / experiment.name, options.jobs
    ),
    "vectors": run_probe,
}


def refuse_another(config: RunConfig, folder: Path) -> None:
    """A training may go on for longer, but not as another one."""
    if any((folder / name).exists() for name in (LAST, FILE)):
        configs = load_config(folder / CONFIG), config
        before, now = (replace(essence(c), train=replace(c.train, max_seconds=0.0)) for c in configs)
        if before != now:
            raise TrellisError(f"{folder} holds a training with another configuration; --force begins it anew.")


def measured(trained: Trained, config: RunConfig, run: str, seconds: float, analyses: list[str], jobs: int) -> Result:
    """The result of a finished training; `seconds` are those of a model that is fitted without steps."""
    device = choose_device(config.device)
    figures, errors = figures_of(trained, config, analyses)
    training: dict[str, Any] = {"seconds": seconds}
    if trained.training["step"] and trained.training["epoch"]:
        training = trained.training | {"valid": valid_by_epoch(trained.history)}
    return Result(
        run=run,
        seed=config.seed,
        corpus=trained.model.about["corpus"],
        config=asdict(config),
        figures=figures,
        training=training,
        hardware=hardware(device, jobs),
        source=source_hash(),
        errors=errors,
    )


def valid_by_epoch(history: list[dict[str, Any]]) -> list[float]:
    """The valid perplexity, or of taggers the percentage of wrong tags, after each epoch."""
    found = ((line["epoch"], line.get(name)) for line in history for name in (VALID_PPL, VALID_ERROR))
    return list({epoch: value for epoch, value in found if value is not None}.values())


def figures_of(
    trained: Trained, config: RunConfig, analyses: list[str]
) -> tuple[dict[str, float | None], dict[str, str]]:
    """What was measured, and the analyses that failed; only language models are analysed."""
    figures: dict[str, float | None] = {**trained.scores.values} if trained.scores else {}
    if not isinstance(trained.model, LanguageModel) or "test" not in figures:
        return figures, {}
    more, errors = analyse(trained.model, config, load_corpus(config.data), analyses)
    return figures | more, errors


def is_done(experiment: Experiment, run: str, seed: int, options: Options) -> bool:
    """Whether the result is there and stays; one of another configuration stays too, with a word about it."""
    path = result_path(options.out, run, seed)
    if options.force or not path.exists():
        return False
    other = not read_result(path).is_of(experiment.config(run, options.overrides))
    print(
        f"{run}.{seed}: {path} is there" + (", of another configuration" if other else "") + "; --force runs it again"
    )
    return True


def run_many(experiment: Experiment, chosen: list[tuple[str, int]], options: Options) -> bool:
    """Run each (run, seed) in a process of its own, `jobs` at a time, and say how each ended; whether all went well."""
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            ended = pool.map(lambda one: run_apart(experiment, one[0], one[1], options), chosen)
            return all(list(starmap(told, ended)))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def told(sentence: str, well: bool) -> bool:
    print(sentence, file=sys.stdout if well else sys.stderr, flush=True)
    return well


def run_apart(experiment: Experiment, run: str, seed: int, options: Options) -> tuple[str, bool]:
    """The last line that `python -m experiments run NAME/RUN` said, and whether it went well; the rest is in a log."""
    command = [sys.executable, "-m", "experiments", "run", f"{experiment.folder}/{run}", "--seed", str(seed)]
    command += ["--out", str(options.out), "--runs", str(options.runs), "--jobs", str(options.jobs)]
    command += [word for override in options.overrides for word in ("--set", override)]
    command += ["--force"] * options.force
    log = options.runs / experiment.name / f"{run}.{seed}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=paths, check=False).returncode
    lines = log.read_text(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), f"{run}.{seed} ended without a word")
    return last, code == 0
