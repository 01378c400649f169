"""trellis score"""

import argparse
from typing import Any

from trellis.cli.arguments import add_text, lines_of
from trellis.cli.console import Answer, Table
from trellis.report.format import COLUMNS, Column, log_prob

SUMMARY = "score sentences: log-probability and perplexity"
EXAMPLE = "trellis score runs/demo < sentences.txt"
SENTENCE = {"log_prob": Column("log p", log_prob), "perplexity": COLUMNS["perplexity"], "text": Column("text")}
TOKEN = {0: COLUMNS["token"], 1: Column("log p", log_prob)}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    parser.add_argument("--tokens", action="store_true", help="also print log p of every token")


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.base import LanguageModel
    from trellis.models.files import load
    from trellis.tasks.lm import Evaluation

    model, lines = load(args.model, LanguageModel, args.device), list(lines_of(args))
    rows: list[dict[str, Any]] = []
    for line, log_probs in zip(lines, model.token_log_probs(lines), strict=True):
        total = float(log_probs.sum(dtype="float64"))
        row = {"log_prob": total, "perplexity": Evaluation(total, log_probs.size).perplexity, "text": line}
        if args.tokens:
            words = model.vocab.decode(model.encode_line(line, eos=True)[0].tolist())
            row["tokens"] = list(zip(words, log_probs.tolist(), strict=True))
        rows.append(row)
    return Answer(rows, tables(rows))


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """The sentences, followed by the tokens of each if requested."""
    return [Table("", rows, SENTENCE), *(Table(row["text"], row["tokens"], TOKEN) for row in rows if "tokens" in row)]
