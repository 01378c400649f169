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

SUMMARY = "Brown clusters of the words of a corpus"
EXAMPLE = "trellis cluster ptb -c 128 -o paths.txt; trellis cluster --show paths.txt"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", nargs="?", metavar="NAME|PATH", help="the text; of a corpus with splits, train")
    parser.add_argument("-c", "--classes", type=positive, help="how many classes")
    parser.add_argument("-o", "--output", type=Path, help="write path<TAB>word<TAB>count lines to this file")
    parser.add_argument("--show", nargs="?", const="", metavar="FILE", help="print the classes, or those of a file")
    parser.add_argument("--top", type=positive, default=10, help="words to show of each class")
    parser.add_argument("--method", default="exchange", choices=("exchange", "agglomerative"))
    parser.add_argument("--cloned", action="store_true", help="every word in a class of its own")
    parser.add_argument("--set", action="append", default=[], metavar="data.x=y", help="how the text is read")
    parser.add_argument("--alone", action="append", default=[], metavar="WORD",
                        help="a word that has a class to itself; may be given again")  # fmt: skip
    parser.add_argument("--max-class-size", type=positive, help="most words in a class")
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
        raise TrellisError("There is nothing to cluster: name a corpus, or a paths file after --show.")
    if args.classes is None and not args.cloned:
        raise TrellisError("How many classes? Give -c NUMBER, or --cloned for one class per word.")
    import numpy as np

    from trellis.corpus import load_corpus
    from trellis.corpus.brown import brown_clusters, cloned

    whole = {"data": {"source": args.corpus, "valid_fraction": 0.0, "test_fraction": 0.0}}
    corpus = load_corpus(run_config(whole, args.set).data)
    vocab = corpus.vocab
    words = vocab.words[: sum(count > 0 for count in vocab.counts)]  # the most frequent come first
    if len(words) < 3:
        raise TrellisError(f"{args.corpus} has only one word besides <eos>; there is nothing to cluster.")
    unknown = [word for word in args.alone if word not in words]
    if unknown:
        raise TrellisError(f"The word {unknown[0]!r} of --alone does not occur in {args.corpus}.")
    if args.cloned:
        return words, cloned(len(words), np.array(vocab.counts[: len(words)]))
    limits = {"max_class_size": args.max_class_size, "min_count": args.min_count}
    more = {"method": args.method, "seed": args.seed, "alone": vocab.encode(args.alone)}
    return words, brown_clusters(corpus["train"].tokens, args.classes, vocab_size=len(words), **limits, **more)
