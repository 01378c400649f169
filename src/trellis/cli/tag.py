"""The commands of taggers: train one, score it, and let it tag."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trellis.cli import console
from trellis.cli.console import Answer
from trellis.config import DataConfig, ModelConfig, RunConfig, TrainConfig, apply_overrides
from trellis.corpus.tagged import FORMATS, TAGGED, Tagged, load_tagged, read_tagged
from trellis.errors import TrellisError
from trellis.families.files import FILE as MODEL
from trellis.tagging import FeatureTagger, Tagger, TaggerConfig, load_tagger
from trellis.tagging.base import FILE
from trellis.tasks.tagging import TagScores, compare_tags, score_tags
from trellis.train import run

SEPARATOR = "_"  # between a word and its tag
CONFUSIONS = 8  # to be shown
POS_HMM = RunConfig(model=ModelConfig(family="tag-hmm"), train=TrainConfig(learner="em"))


def load_data(args: argparse.Namespace, split: str) -> Tagged:
    """A data set by its name, or a file; spans as IOB2."""
    named = args.data in TAGGED and args.format is None
    data = load_tagged(args.data, split) if named else read_tagged(args.data, args.format or "conll", args.column)
    return data.in_iob2()


def train(args: argparse.Namespace) -> Answer:
    folder = args.run or Path("runs") / f"{Path(args.data).stem}-tagger"
    if any((folder / name).exists() for name in (FILE, MODEL)):
        raise TrellisError(f"{folder} already holds a tagger or another model; name another folder.")
    tagger = TRAINERS[args.model](args, folder)
    facts = {"run": str(folder), "kind": tagger.kind, "tags": len(tagger.labels), "words": len(tagger.counts)}
    return Answer(facts, lambda: console.show_facts(facts))


def train_crf(args: argparse.Namespace, folder: Path) -> Tagger:
    config = apply_overrides(replace(TaggerConfig(), template=args.template or ""), args.set)
    tagger = FeatureTagger.train(load_data(args, args.split), config, args.representations)
    tagger.save(folder)
    return tagger


def train_hmm(args: argparse.Namespace, folder: Path) -> Tagger:
    if args.representations or args.template:
        raise TrellisError("A POS HMM takes no template and no representations; leave out --template and --with.")
    if args.format or args.column or args.split != "train" or args.data not in TAGGED:
        raise TrellisError(
            "A POS HMM learns from the train split of a data set that has a name, and is chosen on valid: --data is "
            f"one of {', '.join(TAGGED)}, and --format, --column and --split are left out."
        )
    result = run.train(apply_overrides(replace(POS_HMM, data=DataConfig(source=args.data)), args.set), folder)
    if result.interrupted:
        console.note(f"Interrupted; go on with: trellis train --run {folder} --resume")
        raise KeyboardInterrupt
    return load_tagger(folder)


TRAINERS: dict[str, Callable[[argparse.Namespace, Path], Tagger]] = {"crf": train_crf, "hmm": train_hmm}


def evaluate(args: argparse.Namespace) -> Answer:
    """One tagger or several on the same text; the others are compared with the first."""
    data = load_data(args, args.split)
    taggers = [load_tagger(path) for path in args.taggers]
    for path, tagger in zip(args.taggers, taggers, strict=True):
        tagger.check(data.tag_set(), args.allow_unknown, f"The tagger {path}")
    predicted = [tagger.tag(data.words, data.pos) for tagger in taggers]
    scores = [score_tags(data, tags, t.units, t.counts) for t, tags in zip(taggers, predicted, strict=True)]
    compared = [compare_tags(data, predicted[0], tags, taggers[0].units) for tags in predicted[1:]]
    answer = [
        {"tagger": str(path), **summary(score)} | ({"beside_first": asdict(beside)} if beside else {})
        for path, score, beside in zip(args.taggers, scores, [None, *compared], strict=True)
    ]

    def show() -> None:
        for path, score in zip(args.taggers, scores, strict=True):
            show_scores(str(path), score)
        for path, beside in zip(args.taggers[1:], compared, strict=True):
            facts = {"right where the first is wrong": beside.only_second, "the other way round": beside.only_first,
                     "p (exact binomial)": beside.p_value, "difference in F1": beside.f1.difference,
                     "p (bootstrap)": beside.f1.p_value}  # fmt: skip
            console.note(f"{path} beside {args.taggers[0]}")
            console.show_facts(facts)

    return Answer(answer, show)


def summary(scores: TagScores) -> dict[str, Any]:
    """Scores for machines."""

    def rows(table: dict[str, Any]) -> dict[str, Any]:
        return {k: {**asdict(s), "precision": s.precision, "recall": s.recall, "f1": s.f1} for k, s in table.items()}

    head = {"units": scores.units, "accuracy": scores.accuracy, "f1": scores.f1}
    return head | {"buckets": rows(scores.buckets), "kinds": rows(scores.kinds), "confusions": scores.confusions}


def show_scores(name: str, scores: TagScores) -> None:
    rows = [
        {"bucket": bucket, f"gold {scores.units}": f"{s.gold:,}", "precision": percent(s.precision, s.predicted),
         "recall": percent(s.recall, s.gold), "F1": percent(s.f1, s.predicted + s.gold)}
        for bucket, s in scores.buckets.items()
    ]  # fmt: skip
    console.show_rows(f"{name}: {100 * scores.accuracy:.2f} % of the tags are right", list(rows[0]), rows)
    wrong = [{"gold": g, "predicted": p, "times": n} for g, p, n in scores.confusions[:CONFUSIONS]]
    console.show_rows("most frequent confusions", ["gold", "predicted", "times"], wrong)


def percent(share: float, units: int) -> str:
    """A share of so many units; of none, nothing can be said."""
    return f"{100 * share:.2f}" if units else "-"


def apply(args: argparse.Namespace, lines: Iterable[str]) -> Answer:
    tagger = load_tagger(args.tagger)
    rows = [line.split() for line in lines]
    pairs = [[token.rpartition(SEPARATOR)[::2] if args.pos else (token, "") for token in row] for row in rows]
    words, pos = ([[pair[i] for pair in row] for row in pairs] for i in range(2))
    if args.pos and not all(word and tag for row in pairs for word, tag in row):
        raise TrellisError("With --pos every token is a word, an underscore and its part of speech, as in dogs_NNS.")
    tags = tagger.tag(words, pos if args.pos else None)
    tagged = [list(zip(*row, strict=True)) for row in zip(words, tags, strict=True)]
    text = [" ".join(f"{word}{SEPARATOR}{tag}" for word, tag in row) for row in tagged]
    return Answer([[{"word": w, "tag": t} for w, t in row] for row in tagged], lambda: console.show_lines(text))


def arguments(parser: argparse.ArgumentParser) -> None:
    """train, eval and apply, each with its own."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="train | eval | apply")
    for name, (summary_line, add) in ACTIONS.items():
        action = actions.add_parser(name, help=summary_line, description=summary_line.capitalize() + ".")
        add(action)
        for flag in ("--json", "--quiet"):
            action.add_argument(flag, action="store_true", default=argparse.SUPPRESS)


def data_arguments(parser: argparse.ArgumentParser, split: str) -> None:
    parser.add_argument("--data", required=True, metavar="NAME|FILE", help=f"a file, or one of {', '.join(TAGGED)}")
    parser.add_argument("--format", choices=tuple(FORMATS), help="of a file (default conll)")
    parser.add_argument("--column", help="of the tags: its number from 0 (conll), upos or xpos (conllu)")
    parser.add_argument("--split", default=split, help=f"of a data set (default {split})")


def train_arguments(parser: argparse.ArgumentParser) -> None:
    data_arguments(parser, "train")
    parser.add_argument("--model", choices=tuple(TRAINERS), default="crf", help="crf (features) or hmm (default crf)")
    parser.add_argument("--template", help="crf: pos, chunk, ner or huang (default: pos, of spans chunk)")
    parser.add_argument("--with", dest="representations", action="append", default=[], metavar="KIND:PATH",
                        help="crf: a representation of words; may be given again")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="a=b", help="any other value, as in crf.l2=0.1")
    parser.add_argument("--run", type=Path, metavar="DIR", help="where to write (default runs/DATA-tagger)")


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("taggers", nargs="+", type=Path, metavar="TAGGER", help="the folders of taggers")
    data_arguments(parser, "test")
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
