"""trellis train"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trellis.cli.arguments import add_device, seed
from trellis.cli.console import Answer, Block, Note, Table
from trellis.config import RunConfig, run_config
from trellis.errors import TrellisError
from trellis.options import read_toml
from trellis.registry import FAMILIES

if TYPE_CHECKING:
    from trellis.training.run import Trained

SUMMARY = "train a model and evaluate it"
EXAMPLE = "trellis train --data ptb --states 256 --set train.learner=em --run runs/ptb"
CONFIG, REPORT = "config.toml", "report.html"  # in the run folder


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", type=Path, help="TOML configuration; omitted options keep their defaults")
    parser.add_argument("--model", metavar="NAME", help=f"model family: {', '.join(FAMILIES)} (default hmm)")
    parser.add_argument("--data", metavar="NAME|PATH", help="corpus (default python-docs); - reads standard input")
    parser.add_argument("--column", metavar="NAME", help="csv: column of sequences; USER:EVENT groups events by user")
    parser.add_argument("--states", metavar="N|auto", help="hidden states (default auto: chosen from text and machine)")
    parser.add_argument("--teacher", metavar="RUN", help="add samples of a trained model to the training text "
                        "(train.teacher)")  # fmt: skip
    parser.add_argument("--budget", metavar="TIME", help="limit on the training time, such as 30s, 5m or 2h")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="any other option of the run")
    parser.add_argument("-o", "--run", type=Path, metavar="DIR", help="output folder (default runs/DATA-MODEL)")
    parser.add_argument("--resume", action="store_true", help="resume the run in that folder")
    parser.add_argument("--no-test", action="store_true", help="do not use the test split (eval.test=false)")
    add_device(parser, None)
    parser.add_argument("--seed", type=seed, help="random seed (default 0)")


def run(args: argparse.Namespace) -> Answer:
    before = args.run / CONFIG if args.run and args.resume and args.config is None else None
    args.config = before if before and before.exists() else args.config
    config = run_of(args, {} if args.config is None else read_toml(args.config))
    name = {"-": "stdin"}.get(config.data.source, Path(config.data.source).stem)
    folder = args.run or Path("runs") / f"{name}-{config.model.family}"
    if args.resume and args.config is args.data is None and not (folder / CONFIG).exists():
        raise TrellisError(f"There is no run in {folder} to resume; name its folder with --run.")
    if args.resume and args.config is None and (folder / CONFIG).exists():
        config = run_of(args, read_toml(folder / CONFIG))
    from trellis.training.run import train

    return trained(train(config, folder, args.resume, command=args.line), folder)


def run_of(args: argparse.Namespace, tables: dict[str, Any]) -> RunConfig:
    """The run described by TOML tables, with command-line overrides."""
    given = {"data.source": args.data, "data.column": args.column, "train.teacher": args.teacher}
    given |= {"model.family": args.model, "model.states": args.states}
    given |= {"device": args.device, "seed": args.seed, "budget": args.budget}
    overrides = [f"{key}={value}" for key, value in given.items() if value is not None]
    overrides += ["eval.test=false"] * args.no_test
    try:
        return run_config(tables, [*overrides, *args.set])
    except TrellisError as error:
        raise TrellisError(f"{args.config}: {error}" if args.config else str(error)) from error


def trained(result: Trained, folder: Path) -> Answer:
    """The scores of a finished run and where its report is, or how to resume an interrupted run."""
    data: dict[str, Any] = {"run": str(folder), "training": result.training}
    if result.interrupted:
        return Answer(data, [Note(f"Interrupted; continue with: trellis train --run {folder} --resume")], 130)
    if result.scores is None:  # another process of this job writes the results
        return Answer(data)
    corpus = result.model.about["corpus"]
    blocks: list[Block] = [
        Note(corpus),
        Table(result.scores.title, result.scores.rows),
        Note(f"Model and report written to {folder}; open {folder / REPORT}"),
    ]
    return Answer(data | {"corpus": corpus, "scores": asdict(result.scores)}, blocks)
