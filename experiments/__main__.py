"""`python -m experiments run|memory|table|plot NAME`: train what has no result, print tables, draw plots; `claims`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from experiments import claims as papers, plots, running, tables
from experiments.analyses import describe
from experiments.experiment import Experiment, find
from experiments.remeasure import MEMORY, lacking, measure_memory
from trellis.cli import arguments as cli
from trellis.errors import TrellisError


def run(args: argparse.Namespace) -> int:
    experiment, chosen = find(args.name)
    out = args.out or experiment.results_folder
    options = running.Options(out, args.runs, args.set, args.force, args.jobs, args.analysis, args.test)
    runs = experiment.runs() if chosen is None else [chosen]
    pairs = [(run, seed) for run in runs for seed in args.seed or [experiment.config(run, args.set).seed]]
    missing = [pair for pair in pairs if not running.is_done(experiment, *pair, options)]
    if chosen is None or len(pairs) > 1:
        return 0 if running.run_many(experiment, missing, options) else 1
    return sum(run_here(experiment, *pair, options) for pair in missing)


def run_here(experiment: Experiment, run: str, seed: int, options: running.Options) -> int:
    """Execute a run in this process; the last line printed is its outcome."""
    try:
        result = running.run_one(experiment, run, seed, options)
    except TrellisError as error:
        return failed(f"{run}.{seed} failed: {error}")
    except Exception as error:
        traceback.print_exc()
        return failed(f"{run}.{seed} failed: {describe(error)}")
    for analysis, reason in result.errors.items():
        failed(f"{run}.{seed}: the analysis {analysis!r} failed: {reason}")
    known = {split: result.figures.get(split) for split in ("train", "valid", "test")}
    figures = ", ".join(f"{split} {figure:.2f}" for split, figure in known.items() if figure is not None)
    figures = figures or f"{result.training['seconds']:.0f} seconds"
    print(f"{run}.{seed}: {figures}" + (f"; {len(result.errors)} analyses failed" if result.errors else ""), flush=True)
    return 1 if result.errors else 0


def memory(args: argparse.Namespace) -> int:
    experiment = find_whole(args.name)
    for path in lacking(args.out or experiment.results_folder):
        result = measure_memory(experiment, path)
        print(f"{result.run}.{result.seed}: {(result.figures[MEMORY] or 0) / 1e9:.2f} GB", flush=True)
    return 0


def table(args: argparse.Namespace) -> int:
    print(tables.show(find_whole(args.name), args.format))
    return 0


def plot(args: argparse.Namespace) -> int:
    for path in plots.write_plots(find_whole(args.name), args.out, args.format):
        print(path)
    return 0


def claims(args: argparse.Namespace) -> int:
    print(papers.page())
    return 0


def find_whole(name: str) -> Experiment:
    experiment, chosen = find(name)
    if chosen is not None:
        raise TrellisError(f"Pass the whole experiment, {experiment.name!r}, not one of its runs.")
    return experiment


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments", description="Run experiments and show their results.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(function: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(function.__name__, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        sub.set_defaults(function=function)
        return sub

    running_ = command(run, "train and evaluate runs without a result, the most important first")
    running_.add_argument("name", metavar="NAME[/RUN]", help="an experiment (or its folder), or one of its runs")
    running_.add_argument("--seed", type=cli.seed, action="append", help="repeatable (default: the seed of the run)")
    running_.add_argument("--out", type=Path, help="folder of the results (default: results/ of the experiment)")
    running_.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    running_.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override an option in every run")
    running_.add_argument("--force", action="store_true", help="start again, even if there is a result")
    running_.add_argument("--test", action=argparse.BooleanOptionalAction, help="evaluate on test text (default: yes, "
                          "but not if --set changes the run, as in a search)")  # fmt: skip
    running_.add_argument("--analysis", metavar="NAME", action="append", help="run only this analysis of the trained "
                          "model, such as normalisation; repeatable (default: all)")  # fmt: skip
    running_.add_argument("--jobs", type=cli.positive, default=1, help="number of runs at a time")
    measuring = command(memory, "measure the memory of training steps for results where this failed, on a GPU")
    measuring.add_argument("name", metavar="NAME")
    measuring.add_argument("--out", type=Path, help="folder of the results (default: results/ of the experiment)")
    showing = command(table, "print the tables, with published figures next to ours; computes nothing")
    showing.add_argument("name", metavar="NAME")
    showing.add_argument("--format", choices=tuple(tables.FORMATS), default="text")
    command(claims, "print docs/papers.md: every claim of the papers, with our figures and verdicts")
    plotting = command(plot, "plot the figures of the tables")
    plotting.add_argument("name", metavar="NAME")
    plotting.add_argument("--format", choices=plots.FORMATS, default="svg")
    plotting.add_argument("--out", type=Path, help="folder of the plots (default: plots/ of the experiment)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns 1 if a run failed and 2 if the command or its input is wrong."""
    args = build_parser().parse_args(argv)
    try:
        code: int = args.function(args)
        sys.stdout.flush()
        return code
    except TrellisError as error:
        failed(str(error))
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        failed("interrupted; the same command continues")
        return 130


def failed(sentence: str) -> int:
    print(f"experiments: {sentence}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
