"""trellis parse"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from trellis.cli.arguments import add_text, check_picture, chunks_of, seed
from trellis.cli.console import Answer, Lines, Note, Rows
from trellis.errors import TrellisError

SUMMARY = "parse sentences into bracketed trees, with a grammar"
EXAMPLE = "trellis parse runs/grammar < sentences.txt"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    parser.add_argument("--method", choices=("mbr", "viterbi", "sample"), default="mbr",
                        help="mbr: largest expected number of correct constituents; viterbi: most "
                        "probable tree; sample: random tree (default: mbr)")  # fmt: skip
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--svg", type=Path, metavar="FILE.svg", help="draw the tree of one sentence")


def run(args: argparse.Namespace) -> Answer:
    check_picture(args.svg)
    from trellis.families.pcfg.model import PCFG
    from trellis.models.files import load

    model: Any = load(args.model, PCFG, args.device)
    chunks = chunks_of(args, model)

    def parsed(chunk: list[Any]) -> list[dict[str, Any]]:
        trees = model.parse([one.ids for one in chunk], args.method, args.seed)
        return [one.named | {"text": one.text} | tree.as_data() for one, tree in zip(chunk, trees, strict=True)]

    if args.svg is None:
        return Answer(Rows(map(parsed, chunks), lambda rows: [Lines([row["tree"] for row in rows])], None))
    sentences = next(chunks)
    if len(sentences) > 1:
        raise TrellisError(f"A picture shows one sentence, not {len(sentences)}; pass it as one argument, in quotes.")
    tree = model.parse(sentences[0].ids, args.method, args.seed)
    tree.save(args.svg)
    return Answer({"output": str(args.svg), **tree.as_data()}, [Lines([str(tree)]), Note(f"wrote {args.svg}")])
