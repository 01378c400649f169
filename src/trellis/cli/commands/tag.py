"""trellis tag train | eval | apply"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from trellis.cli.arguments import TOKENS, add_input, records_of, reported
from trellis.cli.console import Answer, Block, Facts, Lines, Note, Rows, Table
from trellis.config import run_config
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.corpus.read import Record
    from trellis.models.tagger import Tagger
    from trellis.tasks.tagging import Comparison, TagScores

SUMMARY = "train, evaluate and apply taggers"
EXAMPLE = (
    "trellis tag train --data conll2003 --with brown:paths.txt --run runs/ner; trellis tag eval runs/ner "
    "--data conll2003"
)
DATA_SETS = (
    "conll2000", "conll2000-pos", "conll2003", "conll2003-pos", "ud_ewt", "ud_ewt-xpos", "genia", "medpost",
    "treebank_sample",
)  # fmt: skip
FORMATS = "conll", "conllu", "medpost", "word_tag"
FAMILIES = {"crf": "crf", "hmm": "hmm-tagger"}  # of --model
SEPARATOR = "_"  # between a word and its tag
CONFUSIONS = 8  # confusions to show


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="train | eval | apply")
    for name, action in ACTIONS.items():
        sub = actions.add_parser(name, help=action.summary, description=action.summary.capitalize() + ".")
        action.arguments(sub)
        for flag, help in (("--json", "print JSON"), ("--quiet", "suppress progress and log output")):
            sub.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=help)


def run(args: argparse.Namespace) -> Answer:
    return ACTIONS[args.action].run(args)


def data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="NAME|FILE", help=f"a file, or one of {', '.join(DATA_SETS)}")
    parser.add_argument("--format", choices=FORMATS, help="file format (default: conllu for .conllu, else conll)")
    parser.add_argument("--column", help="tag column: its index from 0 (conll), upos or xpos (conllu)")


def train_arguments(parser: argparse.ArgumentParser) -> None:
    data_arguments(parser)
    parser.add_argument("--model", choices=FAMILIES, default="crf", help="crf (features) or hmm (default crf)")
    parser.add_argument("--template", help="crf: pos, chunk, ner or huang (default: pos, or chunk for spans)")
    parser.add_argument("--with", dest="representations", action="append", default=[], metavar="KIND:PATH",
                        help="crf: a word representation; repeatable")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="another option, e.g. train.l2=0.1")
    parser.add_argument("--run", type=Path, metavar="DIR", help="output folder (default runs/DATA-tagger)")


def train(args: argparse.Namespace) -> Answer:
    model = {"family": FAMILIES[args.model], "template": args.template}
    model |= {"representations": ";".join(args.representations)}
    tables = {"model": {name: value for name, value in model.items() if value}, "data": data_table(args)}
    config = run_config(tables, args.set)
    from trellis.models.files import FILE
    from trellis.training import run as job

    folder = args.run or Path("runs") / f"{Path(args.data).stem}-tagger"
    if (folder / FILE).exists():
        raise TrellisError(f"{folder} already contains a tagger or another model; choose another folder.")
    result = job.train(config, folder, command=args.line)
    if result.interrupted:
        advice = f"Interrupted; continue with: trellis train --run {folder} --resume"
        return Answer({"run": str(folder), "training": result.training}, [Note(advice)], 130)
    tagger = cast("Tagger", result.model)
    facts = {"run": str(folder), "kind": args.model, "tags": len(tagger.labels), "words": len(tagger.word_counts)}
    if result.scores is not None:
        rates = {name: value for name, value in result.scores.values.items() if name.endswith(("_accuracy", "_f1"))}
        facts |= {f"{name.replace('_', ' ')}, %": round(value, 2) for name, value in rates.items()}
    return Answer(facts, [Facts(facts)])


def data_table(args: argparse.Namespace) -> dict[str, Any]:
    """The [data] section of the run. A CRF trains on a whole file; an HMM tagger holds out part of it."""
    table = {"source": args.data, "reader": args.format, "column": args.column}
    whole = args.model == "crf" and args.data not in DATA_SETS
    table |= {"valid_fraction": 0.0, "test_fraction": 0.0} if whole else {}
    return {name: value for name, value in table.items() if value is not None}


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("taggers", nargs="+", type=Path, metavar="TAGGER", help="tagger folders")
    data_arguments(parser)
    parser.add_argument("--split", default="test", help="split of a data set (default test)")


def evaluate(args: argparse.Namespace) -> Answer:
    """Evaluate one or more taggers on the same text; the others are compared with the first."""
    from trellis.corpus.tagged import load_tagged, read_tagged
    from trellis.models.files import load
    from trellis.models.tagger import Tagger
    from trellis.tasks.tagging import compare_tags, score_tags

    named = args.data in DATA_SETS and args.format is None
    text = load_tagged(args.data, args.split) if named else read_tagged(args.data, args.format, args.column)
    data, taggers = text.in_iob2(), [load(path, Tagger) for path in args.taggers]
    for path, tagger in zip(args.taggers, taggers, strict=True):
        tagger.check(data.tag_set(), f"The tagger {path}")
    predicted = [tagger.tag(data.words, data.pos) for tagger in taggers]
    scores = [score_tags(data, tags, t.units, t.word_counts) for t, tags in zip(taggers, predicted, strict=True)]
    compared = [None, *(compare_tags(data, predicted[0], tags, taggers[0].units) for tags in predicted[1:])]
    rows = list(zip(map(str, args.taggers), scores, compared, strict=True))
    answer = [
        {"tagger": path, **summary(score)} | ({"beside_first": asdict(c)} if c else {}) for path, score, c in rows
    ]
    blocks = [block for path, score, _ in rows for block in score_blocks(path, score)]
    blocks += [block for path, _, c in rows if c for block in comparison_blocks(path, str(args.taggers[0]), c)]
    return Answer(answer, blocks)


def summary(scores: TagScores) -> dict[str, Any]:
    """The scores as JSON data."""

    def rows(table: dict[str, Any]) -> dict[str, Any]:
        return {k: {**asdict(s), "precision": s.precision, "recall": s.recall, "f1": s.f1} for k, s in table.items()}

    head = {"units": scores.units, "accuracy": scores.accuracy, "f1": scores.f1}
    return head | {"buckets": rows(scores.buckets), "kinds": rows(scores.kinds), "confusions": scores.confusions}


def score_blocks(name: str, scores: TagScores) -> list[Block]:
    rows = [
        {"bucket": bucket, f"gold {scores.units}": f"{s.gold:,}", "precision": percent(s.precision, s.predicted),
         "recall": percent(s.recall, s.gold), "F1": percent(s.f1, s.predicted + s.gold)}
        for bucket, s in scores.buckets.items()
    ]  # fmt: skip
    wrong = [{"gold": g, "predicted": p, "times": n} for g, p, n in scores.confusions[:CONFUSIONS]]
    title = f"{name}: {100 * scores.accuracy:.2f} % of the tags are correct"
    return [Table(title, rows), Table("most frequent confusions", wrong)]


def comparison_blocks(name: str, first: str, beside: Comparison) -> list[Block]:
    facts = {"correct where the first is wrong": beside.only_second, "the other way round": beside.only_first,
             "p (exact binomial)": beside.p_value, "difference in F1": beside.f1.difference,
             "p (bootstrap)": beside.f1.p_value}  # fmt: skip
    return [Note(f"{name} compared with {first}"), Facts(facts)]


def percent(share: float, units: int) -> str:
    """A percentage of `units`; undefined if there are none."""
    return f"{100 * share:.2f}" if units else "-"


def apply_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tagger", type=Path, metavar="TAGGER", help="tagger folder")
    parser.add_argument("text", nargs="*", help="sentences, tokens separated by spaces (default: read --input)")
    add_input(parser)
    parser.add_argument("--pos", action="store_true", help="tokens are word_POS, for taggers that use parts of speech")


def apply(args: argparse.Namespace) -> Answer:
    from trellis.corpus.tagged import split_words
    from trellis.models.files import load
    from trellis.models.tagger import Tagger

    tagger = load(args.tagger, Tagger)
    records = records_of(args, tagger)
    words = ((record, split_words(record.text)) for record in records)
    chunks = reported(records.in_chunks(words, lambda one: len(one[1]) + 1, TOKENS), args)
    return Answer(Rows((tagged(tagger, chunk, args.pos) for chunk in chunks), lines, cells=None))


def tagged(tagger: Tagger, chunk: list[tuple[Record, list[str]]], with_pos: bool) -> list[dict[str, Any]]:
    """A row for each sentence; an empty sentence has no tags."""
    pairs = [[token.rpartition(SEPARATOR)[::2] if with_pos else (token, "") for token in row] for _, row in chunk]
    words, pos = ([[pair[i] for pair in row] for row in pairs] for i in range(2))
    for (record, _), row in zip(chunk, pairs, strict=True):
        if with_pos and not all(word and tag for word, tag in row):
            raise TrellisError(f"Line {record.line}: with --pos, every token must be word_POS, as in dogs_NNS.")
    found = zip(chunk, words, tagger.tag(words, pos if with_pos else None), strict=True)
    named = ({} if record.id is None else {"id": record.id} for (record, _) in chunk)
    return [own | {"words": row, "tags": tags} for own, (_, row, tags) in zip(named, found, strict=True)]


def lines(rows: list[dict[str, Any]]) -> list[Block]:
    """One line per sentence: word_TAG, after the id of its record, if it has one."""
    text = [" ".join(map(SEPARATOR.join, zip(row["words"], row["tags"], strict=True))) for row in rows]
    return [Lines(f"{row['id']}: {line}" if "id" in row else line for row, line in zip(rows, text, strict=True))]


class Action(NamedTuple):
    """One of the three actions."""

    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Answer]


ACTIONS = {
    "train": Action("train a tagger on tagged text", train_arguments, train),
    "eval": Action("evaluate taggers: accuracy or F1, rare words, confusions, significance", eval_arguments, evaluate),
    "apply": Action("tag sentences", apply_arguments, apply),
}
