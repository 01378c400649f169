"""trellis score"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from trellis.cli.arguments import add_jobs, add_text, chunks_of
from trellis.cli.console import Answer, Rows, Table
from trellis.cli.jobs import each_chunk
from trellis.report.format import COLUMNS, Column, log_prob

if TYPE_CHECKING:
    from trellis.models.base import LanguageModel
    from trellis.models.reading import Sentence

SUMMARY = "score sentences: log-probability and perplexity"
EXAMPLE = "trellis score demo < sentences.txt"
SENTENCE = {"log_prob": Column("log p", log_prob), "perplexity": COLUMNS["perplexity"], "text": Column("text")}
TOKEN = {0: COLUMNS["token"], 1: Column("log p", log_prob)}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    add_jobs(parser)
    parser.add_argument("--tokens", action="store_true", help="also print log p of every token")


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.base import LanguageModel
    from trellis.models.files import load

    model = load(args.model, LanguageModel, args.device)
    work = partial(scored, model, tokens=args.tokens)
    return Answer(Rows(each_chunk(work, chunks_of(args, model), args.jobs, model.device.type), tables))


def scored(model: LanguageModel, chunk: list[Sentence], tokens: bool) -> list[dict[str, Any]]:
    """A row for each sentence."""
    from trellis.tasks.lm import Evaluation

    rows: list[dict[str, Any]] = []
    for sentence, log_probs in zip(chunk, model.token_log_probs([one.ids for one in chunk]), strict=True):
        total = float(log_probs.sum(dtype="float64"))
        row: dict[str, Any] = sentence.named | {
            "log_prob": total,
            "perplexity": Evaluation(total, log_probs.size).perplexity,
        }
        if tokens:
            words = model.vocab.decode([*sentence.ids.tolist(), model.vocab.eos])
            row["tokens"] = list(zip(words, log_probs.tolist(), strict=True))
        rows.append(row | {"text": sentence.text})
    return rows


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """The sentences, followed by the tokens of each if requested."""
    columns = {"id": Column("id")} | SENTENCE if "id" in rows[0] else SENTENCE
    return [Table("", rows, columns), *(Table(row["text"], row["tokens"], TOKEN) for row in rows if "tokens" in row)]
