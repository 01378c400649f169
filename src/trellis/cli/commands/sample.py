"""trellis sample"""

import argparse

from trellis.cli.arguments import add_device, add_model, positive, seed
from trellis.cli.console import Answer, Lines

SUMMARY = "sample sentences"
EXAMPLE = "trellis sample demo -n 3 --seed 1"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_device(parser)
    parser.add_argument("-n", type=positive, default=1, help="number of sentences")
    parser.add_argument("--max-tokens", type=positive, default=100, help="maximum tokens per sentence")
    parser.add_argument("--seed", type=seed, default=0)


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.files import load

    sentences = load(args.model, None, args.device).sample(args.n, args.max_tokens, args.seed)
    return Answer(sentences, [Lines(sentences)])
