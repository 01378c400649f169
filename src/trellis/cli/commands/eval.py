"""trellis eval"""

from __future__ import annotations

import argparse
import string
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trellis.cli.arguments import add_corpus, add_device, check_picture, positive
from trellis.cli.console import Answer, Table
from trellis.report.format import COLUMNS, Column, difference, log_prob, p_value, perplexity

if TYPE_CHECKING:
    from trellis.tasks.compare import Context, Row

SUMMARY = "compare models on a corpus: perplexity and its breakdown"
EXAMPLE = "trellis eval runs/ptb runs/ptb-bigram --data ptb --interpolate --plot ptb.svg"
STATES = {"streams": "carried", "documents": "carried in documents", "sentences": "reset"}  # by batches.order
BANDS = {"by_frequency": "training count", "by_position": "words before"}
MODELS = {
    "name": Column(""),
    "model": Column("model"),
    "family": Column("family"),
    "perplexity": Column("perplexity", perplexity, min),
    "tokens": COLUMNS["tokens"],
    "state": Column("state"),
}
DIFFERENCES = {
    "name": Column(""),
    "difference": Column("minus A", difference),
    "low": Column("95% from", difference),
    "high": Column("to", difference),
    "p_value": Column("p", p_value),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="model files or run folders")
    add_corpus(parser)
    add_device(parser)
    parser.add_argument(
        "--interpolate", action="store_true", help="add their mixture; weights are fitted on the validation set"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="plot perplexity by frequency and position")
    parser.add_argument("-n", type=positive, default=5, help="words to show with the largest losses (default 5)")


def run(args: argparse.Namespace) -> Answer:
    check_picture(args.plot)
    from trellis.report.comparison import write_comparison
    from trellis.tasks.compare import compare

    rows = compare(args.models, args.data, args.split, args.interpolate, args.n, args.device)
    if args.plot is not None:
        write_comparison(args.plot, rows)
    return Answer([asdict(row) for row in rows], tables(rows))


def tables(rows: Sequence[Row]) -> list[Table]:
    """Tables that compare the models; the first one assigns each a letter."""
    names = [string.ascii_uppercase[i] if i < 26 else str(i + 1) for i in range(len(rows))]
    lettered = list(zip(names, rows, strict=True))
    found = [Table("per token, including <eos> and <unk>", [described(*pair, names) for pair in lettered], MODELS)]
    for kind, heading in BANDS.items():
        columns = {0: Column(heading), 1: COLUMNS["tokens"]} | {
            i: Column(n, perplexity) for i, n in enumerate(names, 2)
        }
        bands = zip(*(getattr(row, kind) for row in rows), strict=True)
        values = [(same[0].name, same[0].tokens, *(band.perplexity for band in same)) for same in bands]
        found.append(Table(f"perplexity by {heading}", values, columns))
    others = [(name, row.against_first) for name, row in lettered if row.against_first is not None]
    if others:
        shown = [{"name": name, **vars(other.perplexity)} for name, other in others]
        found.append(Table("difference in perplexity, paired bootstrap", shown, DIFFERENCES))
    for name, other in others:
        found += [*contexts("A", name, other.gains), *contexts(name, "A", other.losses)]
    return found


def described(name: str, row: Row, names: Sequence[str]) -> dict[str, object]:
    """The table row of a model; an interpolation is written as a sum of models."""
    mixed = " + ".join(f"{weight:.3f} {other}" for weight, other in zip(row.weights or (), names, strict=False))
    own = {"name": name, "model": mixed or row.model, "state": STATES.get(row.order, row.order)}
    return own | {key: getattr(row, key) for key in ("family", "perplexity", "tokens")}


def contexts(loser: str, winner: str, found: Sequence[Context]) -> list[Table]:
    """A table of words in context with both log-probabilities; none if there are no contexts."""
    columns = {"text": Column("context"), "log_prob": Column(f"log p {loser}", log_prob)}
    columns["other"] = Column(winner, log_prob)
    return [Table(f"where {loser} loses most to {winner}", [vars(one) for one in found], columns)] if found else []
