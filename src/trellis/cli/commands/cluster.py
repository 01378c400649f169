"""trellis cluster"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trellis.cli.arguments import positive, seed
from trellis.cli.console import Answer, Facts, Lines
from trellis.config import run_config
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.corpus.brown_paths import Clustering

SUMMARY = "cluster the words of a corpus (Brown clustering)"
EXAMPLE = "trellis cluster ptb -c 128 -o paths.txt; trellis cluster --show paths.txt"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", nargs="?", metavar="NAME|PATH", help="the text; if it has splits, the training split")
    parser.add_argument("-c", "--classes", type=positive, help="number of classes")
    parser.add_argument("-o", "--output", type=Path, help="write path<TAB>word<TAB>count lines to this file")
    parser.add_argument("--show", nargs="?", const="", metavar="FILE", help="print the classes, or those in FILE")
    parser.add_argument("--top", type=positive, default=10, help="words to show per class")
    parser.add_argument("--method", default="exchange", choices=("exchange", "agglomerative"))
    parser.add_argument("--cloned", action="store_true", help="put every word in its own class")
    parser.add_argument("--set", action="append", default=[], metavar="data.x=y", help="override an option of [data]")
    parser.add_argument("--alone", action="append", default=[], metavar="WORD",
                        help="a word to keep in its own class; repeatable")  # fmt: skip
    parser.add_argument("--max-class-size", type=positive, help="maximum words per class")
    parser.add_argument("--min-count", type=positive, default=1, help="rarer words share one class")
    parser.add_argument("--seed", type=seed, default=0)


def run(args: argparse.Namespace) -> Answer:
    from trellis.corpus.brown_paths import describe, read_paths

    words, clustering = read_paths(args.show) if args.show else clustered(args)
    if args.output is not None and not args.show:
        clustering.save(args.output, words)
    facts: dict[str, Any] = {"words": len(words), "classes": len(clustering.paths), "ami": clustering.ami}
    facts |= {} if args.output is None else {"output": str(args.output)}
    if args.show is None:
        return Answer(facts, [Facts(facts)])
    tops = [[words[i] for i in members] for members in clustering.members(args.top)]
    data = facts | {"paths": dict(zip(clustering.paths, tops, strict=True))}
    return Answer(data, [Lines(describe(clustering, words, args.top))])


def clustered(args: argparse.Namespace) -> tuple[list[str], Clustering]:
    """The words of a corpus and their classes."""
    if args.corpus is None:
        raise TrellisError("Nothing to cluster; name a corpus, or a paths file after --show.")
    if args.classes is None and not args.cloned:
        raise TrellisError("The number of classes is missing; pass -c NUMBER, or --cloned for one class per word.")
    import numpy as np

    from trellis.corpus import load_corpus
    from trellis.corpus.brown import brown_clusters, cloned

    whole = {"data": {"source": args.corpus, "valid_fraction": 0.0, "test_fraction": 0.0}}
    corpus = load_corpus(run_config(whole, args.set).data)
    vocab = corpus.vocab
    words = vocab.words[: sum(count > 0 for count in vocab.counts)]  # the most frequent come first
    if len(words) < 3:
        raise TrellisError(f"{args.corpus} has only one word besides <eos>: nothing to cluster.")
    unknown = [word for word in args.alone if word not in words]
    if unknown:
        raise TrellisError(f"The --alone word {unknown[0]!r} does not occur in {args.corpus}.")
    if args.cloned:
        return words, cloned(len(words), np.array(vocab.counts[: len(words)]))
    limits = {"max_class_size": args.max_class_size, "min_count": args.min_count}
    more = {"method": args.method, "seed": args.seed, "alone": vocab.encode(args.alone)}
    return words, brown_clusters(corpus["train"].tokens, args.classes, vocab_size=len(words), **limits, **more)
