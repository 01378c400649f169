"""What the commands do: arguments in, an answer out that can be printed or serialised."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.cli import console
from trellis.cli import tag as taggers
from trellis.cli import vectors as lds
from trellis.cli.configure import run_of
from trellis.cli.console import Answer
from trellis.config import run_config
from trellis.corpus import cache_entries, clear_cache, load_corpus
from trellis.corpus.brown import brown_clusters, cloned
from trellis.corpus.brown_paths import Clustering, describe, read_paths
from trellis.errors import TrellisError
from trellis.families.factorial.model import FHMM
from trellis.families.hmm.model import HMM
from trellis.families.hmm.states import measure_states, summarise_states
from trellis.families.lds.model import LDS
from trellis.models.base import LanguageModel, PersistedModel
from trellis.models.files import load
from trellis.options import read_toml
from trellis.registry import find_family, resolve
from trellis.report.comparison import write_comparison
from trellis.report.page import write_report
from trellis.storage import atomic_write
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
    report = write_report(folder, result.model, scores)

    def show() -> None:
        console.note(corpus)
        console.show_rows(scores.title, list(scores.rows[0]), scores.rows)
        console.note(f"Model, metrics and report are in {folder}; open {report}")

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
    sentences = load(args.model, LanguageModel, args.device).sample(args.n, args.max_tokens, args.seed)
    return Answer(sentences, lambda: console.show_lines(sentences))


def score(args: argparse.Namespace) -> Answer:
    model, rows = load(args.model, LanguageModel, args.device), []
    for line in lines_of(args):
        tokens = model.encode_line(line, eos=True)
        log_probs = score_line(model, tokens)
        total = float(log_probs.sum(dtype=torch.float64))
        row = {"log_prob": total, "perplexity": lm.Evaluation(total, log_probs.numel()).perplexity, "text": line}
        if args.tokens:
            row["tokens"] = list(zip(model.vocab.decode(tokens[0].tolist()), log_probs.tolist(), strict=True))
        rows.append(row)
    return Answer(rows, lambda: console.show_scores(rows))


@torch.no_grad()
def score_line(model: LanguageModel, tokens: Tensor) -> Tensor:
    """log p of every token of one sentence: [T]."""
    return model.score(tokens, model.sentence_start(1))[0][0]


def infill(args: argparse.Namespace) -> Answer:
    model = stateful(load(args.model, LanguageModel, args.device), "infill")
    results = [(line, model.infill(line, args.n, args.samples, args.seed, args.whole)) for line in lines_of(args)]

    def show() -> None:
        for line, answer in results:
            console.show_infilled(line, answer)

    return Answer([{"text": line} | answer._asdict() for line, answer in results], show)


def layer_sizes(model: HMM | FHMM) -> tuple[int, ...]:
    return model.sizes if isinstance(model, FHMM) else (model.num_states,)


def path_features(model: HMM | FHMM, tokens: Tensor) -> Tensor:
    """The most probable state of every token as zeros and a one, layer by layer: [T, S]."""
    path = model.best_path(tokens)[0][0]
    layers = zip(path.view(len(path), -1).unbind(-1), layer_sizes(model), strict=True)
    return torch.cat([torch.nn.functional.one_hot(states, size) for states, size in layers], -1)


FEATURES: dict[str, Callable[[HMM | FHMM, Tensor], Tensor]] = {
    "posterior": lambda model, tokens: model.posterior(tokens).probs[0],
    "filtered": lambda model, tokens: model.filtered(tokens).probs[0],
    "viterbi": path_features,
}


def embed(args: argparse.Namespace) -> Answer:
    loaded = load(args.model, None, args.device)
    if isinstance(loaded, LDS):
        return lds.embed(loaded, args, lines_of(args))
    model = loaded if isinstance(loaded, FHMM) else stateful(loaded, "embed")
    what = args.what or "posterior"
    if what not in FEATURES:
        raise TrellisError(f"An {model.name} has no {what} vectors; ask for {', '.join(FEATURES)}.")
    words: list[str] = []
    features: list[np.ndarray] = []
    for line in lines_of(args):
        tokens = model.encode_line(line)
        words += model.vocab.decode(tokens[0].tolist())
        features.append(FEATURES[what](model, tokens).float().cpu().numpy())
    table = np.concatenate(features)
    if args.output is not None:
        with atomic_write(args.output) as file:
            np.save(file, table)
        data: dict[str, Any] = {"output": str(args.output), "tokens": len(words), "dimensions": table.shape[1]}
        return Answer(data, lambda: console.note(f"{args.output}: {table.shape[0]} tokens x {table.shape[1]} states"))
    layers = np.split(table, np.cumsum(layer_sizes(model))[:-1], axis=1)
    best = [
        {"token": word, "layer": m, "state": int(row.argmax()), "probability": float(row.max())}
        for t, word in enumerate(words)
        for m, row in enumerate(layer[t] for layer in layers)
    ]
    if len(layers) == 1:
        best = [{name: value for name, value in row.items() if name != "layer"} for row in best]
    return Answer(best, lambda: console.show_rows("", list(best[0]), best))


def states(args: argparse.Namespace) -> Answer:
    model = stateful(load(args.model, LanguageModel, args.device), "states")
    if args.measures:
        split = lm.load_split(model, args.data, args.split)
        facts = measure_states(model, lm.READINGS[model.about.get("order", "sentences")](split))._asdict()
        return Answer(facts, lambda: console.show_facts(facts))
    summaries = summarise_states(model, args.n, args.words)
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


def stateful(model: PersistedModel, command: str) -> HMM:
    """The model, if it has hidden states, one at a time."""
    if isinstance(model, FHMM):
        raise TrellisError(f"'trellis {command}' is for HMMs; the layers of a {model.name} model have no single state.")
    if not isinstance(model, HMM):
        raise TrellisError(f"A {model.name} model has no hidden states, so 'trellis {command}' cannot answer for it.")
    return model


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
