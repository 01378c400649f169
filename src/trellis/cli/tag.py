"""The commands of taggers: train one, score it, and let it tag."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from trellis.cli import console
from trellis.cli.console import Answer
from trellis.config import run_config
from trellis.corpus.tagged import TAGGED, Tagged, load_tagged, read_tagged
from trellis.errors import TrellisError
from trellis.models.files import FILE, load
from trellis.models.tagger import Tagger
from trellis.tasks.tagging import TagScores, compare_tags, score_tags
from trellis.training import run

SEPARATOR = "_"  # between a word and its tag
CONFUSIONS = 8  # to be shown
FAMILIES = {"crf": "crf", "hmm": "hmm-tagger"}  # of --model


def load_data(args: argparse.Namespace, split: str) -> Tagged:
    """A data set by its name, or a file; spans as IOB2."""
    named = args.data in TAGGED and args.format is None
    data = load_tagged(args.data, split) if named else read_tagged(args.data, args.format or "conll", args.column)
    return data.in_iob2()


def train(args: argparse.Namespace) -> Answer:
    folder = args.run or Path("runs") / f"{Path(args.data).stem}-tagger"
    if (folder / FILE).exists():
        raise TrellisError(f"{folder} already holds a tagger or another model; name another folder.")
    model = {
        "family": FAMILIES[args.model],
        "template": args.template,
        "representations": ";".join(args.representations),
    }
    tables = {"model": {name: value for name, value in model.items() if value}, "data": data_table(args)}
    result = run.train(run_config(tables, args.set), folder)
    if result.interrupted:
        console.note(f"Interrupted; continue with: trellis train --run {folder} --resume")
        raise KeyboardInterrupt
    tagger = cast(Tagger, result.model)
    facts = {"run": str(folder), "kind": args.model, "tags": len(tagger.labels), "words": len(tagger.word_counts)}
    return Answer(facts, lambda: console.show_facts(facts))


def data_table(args: argparse.Namespace) -> dict[str, Any]:
    """The [data] of a run: of a file, all is for training."""
    table = {"source": args.data, "reader": args.format, "column": args.column}
    table |= {} if args.data in TAGGED else {"valid_fraction": 0.0, "test_fraction": 0.0}
    return {name: value for name, value in table.items() if value is not None}


def evaluate(args: argparse.Namespace) -> Answer:
    """One tagger or several on the same text; the others are compared with the first."""
    data = load_data(args, args.split)
    taggers = [load(path, Tagger) for path in args.taggers]
    for path, tagger in zip(args.taggers, taggers, strict=True):
        tagger.check(data.tag_set(), args.allow_unknown, f"The tagger {path}")
    predicted = [tagger.tag(data.words, data.pos) for tagger in taggers]
    scores = [score_tags(data, tags, t.units, t.word_counts) for t, tags in zip(taggers, predicted, strict=True)]
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
    tagger = load(args.tagger, Tagger)
    rows = [line.split() for line in lines]
    pairs = [[token.rpartition(SEPARATOR)[::2] if args.pos else (token, "") for token in row] for row in rows]
    words, pos = ([[pair[i] for pair in row] for row in pairs] for i in range(2))
    if args.pos and not all(word and tag for row in pairs for word, tag in row):
        raise TrellisError("With --pos every token is a word, an underscore and its part of speech, as in dogs_NNS.")
    tags = tagger.tag(words, pos if args.pos else None)
    tagged = [list(zip(*row, strict=True)) for row in zip(words, tags, strict=True)]
    text = [" ".join(f"{word}{SEPARATOR}{tag}" for word, tag in row) for row in tagged]
    return Answer([[{"word": w, "tag": t} for w, t in row] for row in tagged], lambda: console.show_lines(text))
