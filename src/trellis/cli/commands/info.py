"""trellis info"""

import argparse

from trellis.cli.arguments import add_model
from trellis.cli.console import Answer, Facts

SUMMARY = "show the family, size, corpus and scores of a model"
EXAMPLE = "trellis info demo --json"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.files import load

    model = load(args.model)
    facts = {"family": model.family, **model.settings(), "parameters": model.num_parameters()}
    facts |= {"words": len(model.vocab), "tokenizer": model.vocab.tokenizer, **model.about}
    return Answer(facts, [Facts(facts)])
