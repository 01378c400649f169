"""A command: trellis surprise"""

from __future__ import annotations

import argparse
from typing import Any

from trellis.cli.arguments import add_text, chunks_of
from trellis.cli.console import Answer, Rows, Table

SUMMARY = "the least expected word of each sentence"
EXAMPLE = 'trellis surprise runs/demo "the cat sees a stone"'


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.base import LanguageModel
    from trellis.models.files import load

    model = load(args.model, LanguageModel, args.device)

    def surprises(sentences: list[Any]) -> list[dict[str, Any]]:
        rows = []
        log_probs = model.token_log_probs([sentence.ids for sentence in sentences])
        for sentence, found in zip(sentences, log_probs, strict=True):
            place, words = int(found.argmin()), [*sentence.tokens, "<eos>"]
            rows.append({"word": words[place], "log_prob": float(found[place]), "text": sentence.text})
        return rows

    return Answer(Rows(map(surprises, chunks_of(args, model)), lambda rows: [Table("", rows)]))
