"""trellis infill"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trellis.cli.arguments import add_text, chunks_of, positive, seed
from trellis.cli.console import Answer, Block, Lines, Note, Rows, Table
from trellis.errors import TrellisError
from trellis.report.format import COLUMNS

if TYPE_CHECKING:
    from trellis.models.reading import Sentence

SUMMARY = "fill gaps in sentences by exact inference"
EXAMPLE = 'trellis infill demo "the function ___ a list"'
RANKED = {0: COLUMNS["word"], 1: COLUMNS["probability"]}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    parser.add_argument("-n", type=positive, default=10, help="words to show per gap")
    parser.add_argument("--samples", type=positive, default=3, help="completions to sample")
    parser.add_argument("--complete", action="store_true", help="treat the end of the text as the end of the sentence")
    parser.add_argument("--seed", type=seed, default=0)


def run(args: argparse.Namespace) -> Answer:
    from trellis.corpus import GAP
    from trellis.models.files import load

    model = load(args.model, None, args.device)
    chunks = chunks_of(args, model, gap=GAP)
    return Answer(Rows((filled(model, chunk, args) for chunk in chunks), blocks))


def filled(model: Any, chunk: list[Sentence], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each sentence; an empty sentence has no gaps."""
    full = next((one.place for one in chunk if one.ids.size and (one.ids >= 0).all()), None)
    if full is not None:
        raise TrellisError(f"{full} has no gap; write ___ for each missing word.")
    found = model.infill([one.ids for one in chunk], args.n, args.samples, args.seed, args.complete)
    return [one.named | {"text": one.text} | answer._asdict() for one, answer in zip(chunk, found, strict=True)]


def blocks(rows: list[dict[str, Any]]) -> list[Block]:
    return [block for row in rows for block in completed(row)]


def completed(row: Mapping[str, Any]) -> list[Block]:
    """The words for each gap, the most probable completion, and samples."""
    gaps = [Table(f"gap {number}", ranked, RANKED) for number, ranked in enumerate(row["gaps"], 1)]
    best = "best (proved)" if row["proved"] else "best found (not proved: the search reached its limit)"
    samples = (f"sample  {sample}" for sample in row["samples"])
    return [Note(row["text"]), *gaps, Lines([f"{best}  {row['best']}", *samples])]
