"""trellis dynamics"""

import argparse
from pathlib import Path

from trellis.cli.arguments import add_model, check_picture, positive
from trellis.cli.console import Answer, Table

SUMMARY = "describe the singular vectors of an LDS transition matrix by words"
EXAMPLE = "trellis dynamics runs/lds -n 20"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("-n", type=positive, default=10, help="number of pairs")
    parser.add_argument("--words", type=positive, default=9, help="words to show on each side")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="plot the pairs to this file")


def run(args: argparse.Namespace) -> Answer:
    check_picture(args.plot)
    from trellis.families.lds.model import LDS
    from trellis.families.lds.sections import draw_dynamics
    from trellis.models.files import load
    from trellis.report.markup import SVG
    from trellis.storage import write_text

    pairs = load(args.model, LDS).dynamics(args.n, args.words)
    if args.plot is not None:
        write_text(args.plot, f"{draw_dynamics(pairs, **SVG)}\n")
    rows = [{"value": p.value, "from": " ".join(p.before), "to": " ".join(p.after)} for p in pairs]
    return Answer(rows, [Table("singular vector pairs", rows)])
