"""trellis eval"""

from __future__ import annotations

import argparse
import string
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trellis.cli.arguments import add_corpus, add_device, check_picture, positive
from trellis.cli.console import Answer, Block, Note, Table
from trellis.errors import TrellisError
from trellis.report.format import (
    COLUMNS,
    Column,
    bits,
    bits_difference,
    difference,
    log_prob,
    p_value,
    percent,
    perplexity,
)

if TYPE_CHECKING:
    from trellis.tasks.compare import Context, Row

SUMMARY = "compare models on a corpus: perplexity and its breakdown"
EXAMPLE = "trellis eval runs/ptb runs/ptb-bigram --data ptb --interpolate --plot ptb.svg"
STATES = {"streams": "carried", "documents": "carried in documents", "sentences": "reset"}  # by batches.order
MANY_UNKNOWN = 0.2  # share of <unk> that makes a perplexity hard to interpret
BANDS = {"by_frequency": "training count", "by_position": "words before"}
MODELS = {
    "name": Column(""),
    "model": Column("model"),
    "family": Column("family"),
    "perplexity": Column("perplexity", perplexity, min),
    "bits_per_character": Column("bits/char", bits, min),
    "open_bits_per_character": Column("open", bits, min),
    "unknown": Column("<unk>", percent),
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
BITS = {key: Column(DIFFERENCES[key].heading, bits_difference) for key in ("difference", "low", "high")}
TESTED = {"perplexity": "perplexity", "open_bits_per_character": "open bits per character"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="model files or run folders")
    add_corpus(parser)
    add_device(parser)
    parser.add_argument("--no-test", action="store_true", help="use the validation split instead of the test split")
    parser.add_argument("--open", action="store_true", help="compare models with different vocabularies by bits per "
                        "character; unknown words are spelled out")  # fmt: skip
    parser.add_argument("--ngram", nargs="?", type=positive, const=5, default=0, metavar="ORDER",
                        help="add a Kneser-Ney n-gram model of the training text (default order 5)")  # fmt: skip
    parser.add_argument("--dynamic", action="store_true", help="add each model (except n-gram models) under dynamic "
                        "evaluation, in which its weights adapt to the text")  # fmt: skip
    parser.add_argument("--interpolate", action="store_true", help="add the mixture of all models; weights are fitted "
                        "on the validation set")  # fmt: skip
    parser.add_argument("--cache", action="store_true", help="add the mixture of all models with a unigram cache, in "
                        "which recent words are more probable")  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="plot perplexity by frequency and position")
    parser.add_argument("-n", type=positive, default=5, help="words to show with the largest losses (default 5)")


def run(args: argparse.Namespace) -> Answer:
    check_picture(args.plot)
    from trellis.report.comparison import write_comparison
    from trellis.tasks.compare import compare

    if args.no_test and args.split not in (None, "train", "valid"):
        raise TrellisError(f"--no-test and --split {args.split} contradict each other; choose one.")
    rows = compare(
        args.models,
        args.data,
        args.split or ("valid" if args.no_test else None),
        interpolate=args.interpolate,
        contexts=args.n,
        device=args.device,
        open_vocabulary=args.open,
        ngram=args.ngram,
        cache=args.cache,
        dynamic=args.dynamic,
    )
    if args.plot is not None:
        write_comparison(args.plot, rows)
    return Answer([asdict(row) for row in rows], tables(rows))


def tables(rows: Sequence[Row]) -> list[Block]:
    """Tables that compare the models; the first one assigns each a letter."""
    names = [string.ascii_uppercase[i] if i < 26 else str(i + 1) for i in range(len(rows))]
    lettered = list(zip(names, rows, strict=True))
    shown = [described(*pair, names) for pair in lettered]
    hidden = {} if any(row.open_bits_per_character is not None for row in rows) else {"unknown": None}
    columns = {key: MODELS[key] for key in MODELS if any((one | hidden)[key] is not None for one in shown)}
    found: list[Block] = [Table("per token, including <eos> and <unk>", shown, columns)]
    found += [Note(sentence) for pair in lettered for sentence in verdicts(*pair)]
    same_words = all(row.against_first is None or row.against_first.perplexity is not None for row in rows)
    for kind, heading in BANDS.items() if same_words else ():
        letters = {i: Column(name, perplexity) for i, name in enumerate(names, 2)}
        bands = zip(*(getattr(row, kind) for row in rows), strict=True)
        values = [(same[0].name, same[0].tokens, *(band.perplexity for band in same)) for same in bands]
        found.append(Table(f"perplexity by {heading}", values, {0: Column(heading), 1: COLUMNS["tokens"]} | letters))
    others = [(name, row.against_first) for name, row in lettered if row.against_first is not None]
    for key, what in TESTED.items():
        differences = [(name, getattr(other, key)) for name, other in others]
        lines = [{"name": name, **vars(one)} for name, one in differences if one is not None]
        columns = DIFFERENCES if key == "perplexity" else {**DIFFERENCES, **BITS}
        found += [Table(f"difference in {what}, paired bootstrap", lines, columns)] if lines else []
    for name, other in others:
        found += [*contexts("A", name, other.gains), *contexts(name, "A", other.losses)]
    return found


def described(name: str, row: Row, names: Sequence[str]) -> dict[str, object]:
    """The table row of a model; an interpolation is written as a sum of models."""
    weights = row.weights or []
    terms = [*names[: len(weights) - 1], "cache"] if row.cache_decay else names
    mixed = " + ".join(f"{weight:.3f} {term}" for weight, term in zip(weights, terms, strict=False))
    state = None if row.family.endswith("gram") else STATES.get(row.order, row.order)
    own = {"name": name, "model": mixed or row.model, "state": state}
    return own | {key: getattr(row, key) for key in MODELS if key not in own}


def verdicts(name: str, row: Row) -> list[str]:
    """Notes on a model: whether it differs significantly from the first, which settings were chosen on the validation
    set, and whether it can predict unknown words."""
    found = []
    if row.cache_decay:
        found.append(f"{name}: the weight of a word in the cache decays by {row.cache_decay:g} per token.")
    if row.dynamic is not None:
        found.append(f"{name}: gradient steps with rate {row.dynamic.rate:g} and decay {row.dynamic.decay:g}.")
    if row.against_first is not None:
        tested = ((what, getattr(row.against_first, key)) for key, what in TESTED.items())
        found += [difference.verdict("A", name, what) for what, difference in tested if difference is not None]
    if row.unknown > MANY_UNKNOWN and row.open_bits_per_character is None:
        share = f"{100 * row.unknown:.0f} % of the tokens are <unk> to {name}"
        found.append(f"{share}, which makes its perplexity low; --open spells unknown words out.")
    if row.unknown and not row.unk_is_trained:
        found.append(f"{name} was trained without <unk>, so its probability of unknown words is arbitrary.")
    return found


def contexts(loser: str, winner: str, found: Sequence[Context]) -> list[Table]:
    """A table of words in context with both log-probabilities; no table if there are no contexts."""
    columns = {"text": Column("context"), "log_prob": Column(f"log p {loser}", log_prob)}
    columns["other"] = Column(winner, log_prob)
    return [Table(f"where {loser} loses most to {winner}", [vars(one) for one in found], columns)] if found else []
