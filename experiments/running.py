"""Execute runs, one in this process or several in separate processes; each writes a result."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import starmap
from pathlib import Path
from typing import Any

from experiments.experiment import Experiment
from experiments.paper import Analysis, Job
from experiments.results import Result, hardware, read_result, result_path, source_hash, write_result
from experiments.training import differ
from trellis.config import RunConfig
from trellis.devices import choose_device
from trellis.options import choose, to_tables


@dataclass(frozen=True)
class Options:
    """How and where to run."""

    out: Path  # of the results
    runs: Path = Path("runs")  # of the runs
    overrides: list[str] = field(default_factory=list)
    force: bool = False
    jobs: int = 1
    analyses: list[str] | None = None  # names of the analyses of trained models; None: all
    test: bool | None = None  # whether to evaluate on test text; None: unless overrides change the run


def run_one(experiment: Experiment, run: str, seed: int, options: Options) -> Result:
    """Execute a run with one seed, and write the result."""

    def config_of(run: str) -> Any:
        return evaluated(experiment, run, seed, options)

    config, folder = config_of(run), options.runs / experiment.name
    device, begun = choose_device(config.device), time.monotonic()
    analyses = chosen_analyses(experiment, run, options)
    outcome = experiment.kind_of(run).run(Job(run, config, folder, options.force, analyses, config_of))
    result = Result(
        run=run,
        seed=seed,
        corpus=outcome.corpus,
        config=to_tables(config),
        figures=outcome.figures,
        training=outcome.training or {"seconds": time.monotonic() - begun},
        hardware=hardware(device, options.jobs),
        source=source_hash(),
        errors=outcome.errors,
    )
    write_result(result_path(options.out, run, seed), result, config)
    return result


def chosen_analyses(experiment: Experiment, run: str, options: Options) -> dict[str, Analysis]:
    """The analyses of a run by name, all or those that the options name."""
    found = experiment.analyses(run)
    if options.analyses is None:
        return found
    return {name: choose(found, name, f"The analysis of {run}") for name in options.analyses}


def evaluated(experiment: Experiment, run: str, seed: int, options: Options) -> Any:
    """The configuration of a run. Test text is for published settings: a run with other settings, as in a search, is
    evaluated on validation text alone."""
    config = experiment.config(run, options.overrides, seed)
    if not isinstance(config, RunConfig):
        return config
    test = not differ(config, experiment.config(run)) if options.test is None else options.test
    return replace(config, eval=replace(config.eval, test=config.eval.test and test))


def is_done(experiment: Experiment, run: str, seed: int, options: Options) -> bool:
    """Whether there is a result to keep; prints a note if it is of another configuration."""
    path = result_path(options.out, run, seed)
    if options.force or not path.exists():
        return False
    other = not read_result(path).is_of(experiment.config(run, options.overrides))
    print(
        f"{run}.{seed}: {path} is there" + (", of another configuration" if other else "") + "; --force runs it again"
    )
    return True


def run_many(experiment: Experiment, chosen: list[tuple[str, int]], options: Options) -> bool:
    """Execute each (run, seed) in a separate process, `jobs` at a time; returns whether all succeeded."""
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            ended = pool.map(lambda one: run_apart(experiment, one[0], one[1], options), chosen)
            return all(list(starmap(report, ended)))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def report(sentence: str, well: bool) -> bool:
    print(sentence, file=sys.stdout if well else sys.stderr, flush=True)
    return well


def run_apart(experiment: Experiment, run: str, seed: int, options: Options) -> tuple[str, bool]:
    """Run `python -m experiments run NAME/RUN`; returns its last line and whether it succeeded. The rest is logged."""
    command = [sys.executable, "-m", "experiments", "run", f"{experiment.folder}/{run}", "--seed", str(seed)]
    command += ["--out", str(options.out), "--runs", str(options.runs), "--jobs", str(options.jobs)]
    command += [word for override in options.overrides for word in ("--set", override)]
    command += [word for name in options.analyses or () for word in ("--analysis", name)]
    command += ["--force"] * options.force
    command += [] if options.test is None else ["--test" if options.test else "--no-test"]
    log = options.runs / experiment.name / f"{run}.{seed}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=paths, check=False).returncode
    lines = log.read_text(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), f"{run}.{seed} ended without output")
    return last, code == 0
