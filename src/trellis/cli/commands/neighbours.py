"""trellis neighbours"""

import argparse

from trellis.cli.arguments import add_model, positive
from trellis.cli.console import Answer, Table
from trellis.errors import TrellisError

SUMMARY = "find the nearest neighbours of a word in context (LDS)"
EXAMPLE = 'trellis neighbours runs/lds "the bank of the river" --word bank'


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("text", help="a sentence")
    parser.add_argument("--word", required=True, help="the word in the text to look up")
    parser.add_argument("-n", type=positive, default=10, help="number of neighbours")


def run(args: argparse.Namespace) -> Answer:
    from trellis.families.lds.model import LDS
    from trellis.models.files import load

    model = load(args.model, LDS)
    words = model.vocab.decode(model.encode_line(args.text)[0].tolist())
    if args.word not in words:
        raise TrellisError(f"The word {args.word!r} is not in the text; the model reads it as: {' '.join(words)}.")
    found = model.neighbours(args.text, words.index(args.word), args.n)
    rows = [{"word": word, "cosine": cosine} for word, cosine in found]
    return Answer(rows, [Table(f"nearest to {args.word!r} here", rows)])
