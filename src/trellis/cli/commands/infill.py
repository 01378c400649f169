"""trellis infill"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from trellis.cli.arguments import add_text, lines_of, positive, seed
from trellis.cli.console import Answer, Block, Lines, Note, Table
from trellis.report.format import COLUMNS

if TYPE_CHECKING:
    from trellis.models.base import Infilled

SUMMARY = "fill gaps in sentences by exact inference"
EXAMPLE = 'trellis infill runs/demo "the function ___ a list"'
RANKED = {0: COLUMNS["word"], 1: COLUMNS["probability"]}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    parser.add_argument("-n", type=positive, default=10, help="words to show per gap")
    parser.add_argument("--samples", type=positive, default=3, help="completions to draw")
    parser.add_argument("--complete", action="store_true", help="treat the end of the text as the end of the sentence")
    parser.add_argument("--seed", type=seed, default=0)


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.files import load

    lines = list(lines_of(args))
    found: Any = load(args.model, None, args.device).infill(lines, args.n, args.samples, args.seed, args.complete)
    pairs = list(zip(lines, found, strict=True))
    blocks = [block for line, answer in pairs for block in completed(line, answer)]
    return Answer([{"text": line} | answer._asdict() for line, answer in pairs], blocks)


def completed(line: str, answer: Infilled) -> list[Block]:
    """The words for each gap, the most probable completion, and samples."""
    gaps = [Table(f"gap {number}", ranked, RANKED) for number, ranked in enumerate(answer.gaps, 1)]
    return [Note(line), *gaps, Note(f"best    {answer.best}"), Lines(f"sample  {sample}" for sample in answer.samples)]
