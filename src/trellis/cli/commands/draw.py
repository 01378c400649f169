"""trellis draw"""

import argparse
from pathlib import Path

from trellis.cli.arguments import add_text, check_picture, chunks_of
from trellis.cli.console import Answer, Note
from trellis.errors import TrellisError

SUMMARY = "draw the trellis of a sentence: posteriors and Viterbi path"
EXAMPLE = 'trellis draw demo "the function returns a list" -o trellis.svg'


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.svg", help="the picture")


def run(args: argparse.Namespace) -> Answer:
    check_picture(args.output)
    from trellis.families.hmm.model import HMM
    from trellis.models.files import load

    model = load(args.model, HMM, args.device)
    sentences = next(chunks_of(args, model))
    if len(sentences) > 1:
        raise TrellisError(f"A picture shows one sentence, not {len(sentences)}; pass it as one argument, in quotes.")
    trellis = model.draw(sentences[0].ids)
    trellis.save(args.output)
    posterior = [dict(zip(trellis.names, row, strict=True)) for row in trellis.posterior.tolist()]
    data = {"output": str(args.output), "words": list(trellis.words), "posterior": posterior}
    return Answer(data, [Note(f"wrote {args.output}")])
