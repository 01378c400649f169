"""trellis export"""

import argparse
from pathlib import Path

from trellis.cli.arguments import add_model
from trellis.cli.console import Answer, Note
from trellis.errors import TrellisError
from trellis.registry import find_family, resolve

SUMMARY = "export a model to NumPy, hmmlearn or ARPA"
EXAMPLE = "trellis export runs/demo -o model.npz"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, help="output file")
    parser.add_argument("--to", metavar="FORMAT", help="numpy or hmmlearn (HMMs), arpa (n-grams); default: the first")


def run(args: argparse.Namespace) -> Answer:
    from trellis.models.files import load

    model = load(args.model)
    formats = find_family(model.family).exports
    if not formats or args.to not in (None, *formats):
        known = f"its formats are {', '.join(formats)}" if formats else "no export format is available"
        raise TrellisError(f"This {model.name} model cannot be exported as {args.to or 'another format'}; {known}.")
    resolve(formats[args.to or next(iter(formats))])(model, args.output)
    return Answer({"output": str(args.output)}, [Note(f"wrote {args.output}")])
