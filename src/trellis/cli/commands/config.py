"""trellis config"""

import argparse
from dataclasses import asdict

from trellis.cli.console import Answer, Lines
from trellis.config import RunConfig
from trellis.options import to_toml
from trellis.registry import FAMILIES, find_family

SUMMARY = "print a family's options and defaults as TOML"
EXAMPLE = "trellis config hmm > run.toml"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("family", nargs="?", default="hmm", help=f"{', '.join(FAMILIES)} (default hmm)")


def run(args: argparse.Namespace) -> Answer:
    defaults = RunConfig(model=find_family(args.family).load("config")())
    return Answer(asdict(defaults), [Lines(to_toml(defaults, comments=True).splitlines())])
