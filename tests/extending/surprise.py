"""A command: trellis surprise"""

from __future__ import annotations

import argparse

from trellis.cli.arguments import add_text, lines_of
from trellis.cli.console import Answer, Table

SUMMARY = "the least expected word of each sentence"
EXAMPLE = 'trellis surprise runs/demo "the cat sees a stone"'


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.base import LanguageModel
    from trellis.models.files import load

    model = load(args.model, LanguageModel, args.device)
    rows = []
    for line in lines_of(args):
        log_probs = model.token_log_probs(line)
        place = int(log_probs.argmin())
        words = model.vocab.decode(model.encode_line(line, eos=True)[0].tolist())
        rows.append({"word": words[place], "log_prob": float(log_probs[place]), "text": line})
    return Answer(rows, [Table("", rows)])
