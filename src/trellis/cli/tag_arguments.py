"""The arguments of 'trellis tag'."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

DATA_SETS = (
    "conll2000", "conll2000-pos", "conll2003", "conll2003-pos", "ud_ewt", "ud_ewt-xpos", "genia", "medpost",
    "treebank_sample",
)  # fmt: skip
FORMATS = "conll", "conllu", "medpost", "word_tag"


def arguments(parser: argparse.ArgumentParser) -> None:
    """train, eval and apply, each with its own."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="train | eval | apply")
    for name, (summary_line, add) in ACTIONS.items():
        action = actions.add_parser(name, help=summary_line, description=summary_line.capitalize() + ".")
        add(action)
        for flag in ("--json", "--quiet"):
            action.add_argument(flag, action="store_true", default=argparse.SUPPRESS)


def data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="NAME|FILE", help=f"a file, or one of {', '.join(DATA_SETS)}")
    parser.add_argument("--format", choices=FORMATS, help="of a file (default conll)")
    parser.add_argument("--column", help="of the tags: its number from 0 (conll), upos or xpos (conllu)")


def train_arguments(parser: argparse.ArgumentParser) -> None:
    data_arguments(parser)
    parser.add_argument("--model", choices=("crf", "hmm"), default="crf", help="crf (features) or hmm (default crf)")
    parser.add_argument("--template", help="crf: pos, chunk, ner or huang (default: pos, of spans chunk)")
    parser.add_argument("--with", dest="representations", action="append", default=[], metavar="KIND:PATH",
                        help="crf: a representation of words; may be given again")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="a=b", help="any other value, as in train.l2=0.1")
    parser.add_argument("--run", type=Path, metavar="DIR", help="where to write (default runs/DATA-tagger)")


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("taggers", nargs="+", type=Path, metavar="TAGGER", help="the folders of taggers")
    data_arguments(parser)
    parser.add_argument("--split", default="test", help="of a data set (default test)")
    parser.add_argument("--allow-unknown", action="store_true", help="tags that a tagger never saw count as errors")


def apply_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tagger", type=Path, metavar="TAGGER", help="the folder of a tagger")
    parser.add_argument("text", nargs="*", help="sentences, words apart; none reads them from standard input")
    parser.add_argument("--pos", action="store_true", help="tokens are word_POS: the tagger looks at parts of speech")


ACTIONS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "train": ("train a tagger on labelled text", train_arguments),
    "eval": ("score taggers: accuracy or spans, rare words apart, confusions, significance", eval_arguments),
    "apply": ("tag sentences", apply_arguments),
}
