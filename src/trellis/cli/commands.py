"""What the commands do: arguments in, an answer out that can be printed or serialised."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from trellis.cli import console
from trellis.cli import tag as taggers
from trellis.cli.configure import run_of
from trellis.cli.console import Answer
from trellis.config import run_config
from trellis.corpus import cache_entries, clear_cache, load_corpus
from trellis.corpus.brown import brown_clusters, cloned
from trellis.corpus.brown_paths import Clustering, describe, read_paths
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.families.hmm.states import measure_states
from trellis.models.base import LanguageModel
from trellis.models.files import load
from trellis.options import read_toml
from trellis.registry import find_family, resolve
from trellis.report.comparison import write_comparison
from trellis.report.page import REPORT
from trellis.tasks import lm
from trellis.tasks.compare import compare
from trellis.training import run


def train(args: argparse.Namespace) -> Answer:
    config = run_of(args, {} if args.config is None else read_toml(args.config))
    name = {"-": "stdin"}.get(config.data.source, Path(config.data.source).stem)
    folder = args.run or Path("runs") / f"{name}-{config.model.family}"
    if args.resume and args.config is None and (folder / run.CONFIG).exists():
        config = run_of(args, read_toml(folder / run.CONFIG))
    return trained(run.train(config, folder, args.resume), folder)


def trained(result: run.Trained, folder: Path) -> Answer:
    """What a training came to, and a report of it."""
    if result.scores is None:
        advice = f"Interrupted; continue with: trellis train --run {folder} --resume"
        return Answer({"run": str(folder), "training": result.training}, lambda: console.note(advice), 130)
    scores, corpus = result.scores, result.model.about["corpus"]

    def show() -> None:
        console.note(corpus)
        console.show_rows(scores.title, list(scores.rows[0]), scores.rows)
        console.note(f"Model, metrics and report are in {folder}; open {folder / REPORT}")

    data = {"run": str(folder), "corpus": corpus, "training": result.training, "scores": asdict(scores)}
    return Answer(data, show)


def evaluate(args: argparse.Namespace) -> Answer:
    if args.plot is not None and args.plot.suffix != ".svg":
        raise TrellisError(f"The picture {args.plot} would be SVG; name a file that ends in .svg.")
    rows = compare(args.models, args.data, args.split, args.interpolate, args.n, args.device)
    if args.plot is not None:
        write_comparison(args.plot, rows)
    return Answer([asdict(row) for row in rows], lambda: console.show_comparison(rows))


def sample(args: argparse.Namespace) -> Answer:
    sentences = load(args.model, None, args.device).sample(args.n, args.max_tokens, args.seed)
    return Answer(sentences, lambda: console.show_lines(sentences))


def score(args: argparse.Namespace) -> Answer:
    model, lines = load(args.model, LanguageModel, args.device), list(lines_of(args))
    rows: list[dict[str, Any]] = []
    for line, log_probs in zip(lines, model.token_log_probs(lines), strict=True):
        total = float(log_probs.sum(dtype=np.float64))
        row = {"log_prob": total, "perplexity": lm.Evaluation(total, log_probs.size).perplexity, "text": line}
        if args.tokens:
            words = model.vocab.decode(model.encode_line(line, eos=True)[0].tolist())
            row["tokens"] = list(zip(words, log_probs.tolist(), strict=True))
        rows.append(row)
    return Answer(rows, lambda: console.show_scores(rows))


def infill(args: argparse.Namespace) -> Answer:
    lines = list(lines_of(args))
    found = load(args.model, None, args.device).infill(lines, args.n, args.samples, args.seed, args.complete)
    results = list(zip(lines, found, strict=True))

    def show() -> None:
        for line, answer in results:
            console.show_infilled(line, answer)

    return Answer([{"text": line} | answer._asdict() for line, answer in results], show)


def states(args: argparse.Namespace) -> Answer:
    if args.measures:
        model = load(args.model, HMM, args.device)
        split = lm.load_split(model, args.data, args.split)
        facts = measure_states(model, lm.READINGS[model.about.get("order", "sentences")](split))._asdict()
        return Answer(facts, lambda: console.show_facts(facts))
    summaries = load(args.model, None, args.device).states(args.n, args.words)
    return Answer([row._asdict() for row in summaries], lambda: console.show_states(summaries))


def info(args: argparse.Namespace) -> Answer:
    model = load(args.model)
    about = model.about
    facts = {"family": model.family, **model.settings(), "parameters": model.num_parameters()}
    facts |= {"words": len(model.vocab), "tokenizer": model.vocab.tokenizer, **about}
    return Answer(facts, lambda: console.show_facts(facts))


def export(args: argparse.Namespace) -> Answer:
    model = load(args.model)
    formats = find_family(model.family).exports
    if not formats or args.to not in (None, *formats):
        known = f"its formats: {', '.join(formats)}" if formats else "there is no format for it"
        raise TrellisError(f"A {model.name} model cannot be exported as {args.to or 'another format'}; {known}.")
    resolve(formats[args.to or next(iter(formats))])(model, args.output)
    return Answer({"output": str(args.output)}, lambda: console.note(f"wrote {args.output}"))


def cluster(args: argparse.Namespace) -> Answer:
    if args.show:
        return describe_clusters(*read_paths(args.show), args)
    if args.corpus is None:
        raise TrellisError("There is nothing to cluster: name a corpus, or a paths file after --show.")
    whole = {"data": {"source": args.corpus, "valid_fraction": 0.0, "test_fraction": 0.0}}
    corpus = load_corpus(run_config(whole, args.set).data)
    vocab, tokens = corpus.vocab, corpus["train"].tokens
    words = vocab.words[: sum(count > 0 for count in vocab.counts)]  # the most frequent come first
    if len(words) < 3:
        raise TrellisError(f"{args.corpus} has only one word besides <eos>; there is nothing to cluster.")
    unknown = [word for word in args.alone if word not in words]
    if unknown:
        raise TrellisError(f"The word {unknown[0]!r} of --alone does not occur in {args.corpus}.")
    if args.cloned:
        clustering = cloned(len(words), np.array(vocab.counts[: len(words)]))
    elif args.classes is None:
        raise TrellisError("How many classes? Give -c NUMBER, or --cloned for one class per word.")
    else:
        clustering = brown_clusters(
            tokens,
            args.classes,
            vocab_size=len(words),
            method=args.method,
            seed=args.seed,
            alone=vocab.encode(args.alone),
            max_class_size=args.max_class_size,
            min_count=args.min_count,
        )
    if args.output is not None:
        clustering.save(args.output, words)
    return describe_clusters(words, clustering, args)


def describe_clusters(words: list[str], clustering: Clustering, args: argparse.Namespace) -> Answer:
    facts: dict[str, Any] = {"words": len(words), "classes": len(clustering.paths), "ami": clustering.ami}
    facts |= {} if args.output is None else {"output": str(args.output)}
    if args.show is None:
        return Answer(facts, lambda: console.show_facts(facts))
    tops = [[words[i] for i in members] for members in clustering.members(args.top)]
    data = facts | {"paths": dict(zip(clustering.paths, tops, strict=True))}
    return Answer(data, lambda: console.show_lines(describe(clustering, words, args.top)))


def cache(args: argparse.Namespace) -> Answer:
    entries = clear_cache() if args.clear else cache_entries()
    rows = [{"name": e.name, "size": e.size, "date": f"{e.date:%Y-%m-%d}", "path": str(e.path)} for e in entries]
    title = "removed from the cache" if args.clear else "cache"
    return Answer(rows, lambda: console.show_rows(title, ["name", "size", "date", "path"], rows))


def tag(args: argparse.Namespace) -> Answer:
    actions = {
        "train": taggers.train,
        "eval": taggers.evaluate,
        "apply": lambda args: taggers.apply(args, lines_of(args)),
    }
    return actions[args.action](args)


def lines_of(args: argparse.Namespace) -> Iterator[str]:
    """The sentences given as arguments, or on standard input."""
    if args.text:
        if any(0xD800 <= ord(c) < 0xE000 for text in args.text for c in text):
            raise TrellisError("The text on the command line is not UTF-8; convert it first.")
        yield from args.text
        return
    empty = True
    try:
        for line in io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig") if sys.stdin else ():
            empty = False
            yield line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise TrellisError(f"Standard input is not UTF-8 ({error.reason}); convert it first.") from error
    if empty:
        raise TrellisError("There is no text: give sentences as arguments or on standard input.")
