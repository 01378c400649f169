"""trellis draw"""

import argparse
from pathlib import Path

from trellis.cli.arguments import add_device, add_model, check_picture
from trellis.cli.console import Answer, Note

SUMMARY = "draw the trellis of a sentence: posteriors and Viterbi path"
EXAMPLE = 'trellis draw runs/demo "the function returns a list" -o trellis.svg'


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_device(parser)
    parser.add_argument("text", help="a sentence")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.svg", help="the picture")


def run(args: argparse.Namespace) -> Answer:
    check_picture(args.output)
    from trellis.families.hmm.model import HMM
    from trellis.models.files import load

    trellis = load(args.model, HMM, args.device).draw(args.text)
    trellis.save(args.output)
    posterior = [dict(zip(trellis.names, row, strict=True)) for row in trellis.posterior.tolist()]
    data = {"output": str(args.output), "words": list(trellis.words), "posterior": posterior}
    return Answer(data, [Note(f"wrote {args.output}")])
