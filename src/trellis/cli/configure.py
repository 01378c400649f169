"""Runs as the command line describes them; nothing here loads torch."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from trellis.cli.console import Answer
from trellis.config import RunConfig, run_config
from trellis.errors import TrellisError
from trellis.options import to_toml
from trellis.registry import find_family


def run_of(args: argparse.Namespace, tables: dict[str, Any]) -> RunConfig:
    """The run that tables of TOML describe, with what the command line says on top."""
    given = {"data.source": args.data, "model.family": args.model, "model.states": args.states}
    given |= {"device": args.device, "seed": args.seed}
    overrides = [f"{key}={value}" for key, value in given.items() if value is not None]
    try:
        return run_config(tables, [*overrides, *args.set])
    except TrellisError as error:
        raise TrellisError(f"{args.config}: {error}" if args.config else str(error)) from error


def config(args: argparse.Namespace) -> Answer:
    defaults = RunConfig(model=find_family(args.family).load("config")())
    return Answer(asdict(defaults), lambda: print(to_toml(defaults, comments=True), end=""))
