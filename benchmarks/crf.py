"""CRF taggers against crfsuite: seconds per iteration on CoNLL-2000, and whole trainings with 90 tags.

`python -m benchmarks crf [--sentences 6000,46000] [--iterations 150]`: a whole training reads a file of tagged
sentences, computes their features, fits the weights and tags 500 other sentences, in a process of its own. Its CPU
time, peak memory and accuracy are reported. Objective, features and stopping rule are the same for both libraries."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import reduce
from itertools import chain
from operator import add
from pathlib import Path
from sys import intern
from time import perf_counter, process_time
from typing import Any

from benchmarks.report import emit, peak_mb

QUICK = 500  # sentences
PER_ITERATION = 10, 40  # the time per iteration is the difference, without the set-up
SOURCES = "medpost", "ud_ewt-xpos", "genia", "conll2003-pos"  # 47,405 sentences with 95 tags in all
HELD_OUT = 500  # sentences to tag
L2, TOLERANCE = 1.0, 1e-4
Words = list[list[str]]
Tag = Callable[[Words], Words]


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks crf")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} sentences, 20 iterations")
    parser.add_argument("--sentences", default="6000", help="sizes of whole trainings, separated by commas")
    parser.add_argument("--iterations", type=int, default=150, help="the most iterations of a whole training")
    parser.add_argument("--peer", choices=("crfsuite", "none"), default="crfsuite", help="none: ours alone")
    parser.add_argument("--whole", action="store_true", help="whole trainings only")
    chosen, _ = parser.parse_known_args(argv)
    if "TRELLIS_DATA" not in os.environ:
        emit("crf", "CoNLL-2000", "one iteration", None, "crfsuite", "no $TRELLIS_DATA", None, "s")
        return
    if not chosen.whole:
        per_iteration(QUICK if chosen.quick else None)
    for size in [QUICK] if chosen.quick else map(int, chosen.sentences.split(",")):
        whole_training(size, 20 if chosen.quick else chosen.iterations, chosen.peer != "none")


def per_iteration(sentences: int | None) -> None:
    """Seconds per iteration with the 19 attributes of crfsuite's chunker."""
    import torch

    from trellis.corpus.tagged import load_tagged
    from trellis.families.crf.config import CRFTaggerConfig, CRFTrainConfig
    from trellis.families.crf.learning import train_crf
    from trellis.families.crf.model import CRF
    from trellis.families.crf.tagger import CRFTagger

    data = load_tagged("conll2000", "train")[:sentences]
    tagger = CRFTagger.train(data, CRFTaggerConfig(template="chunk"), CRFTrainConfig(iterations=1))
    attributes = tagger.attributes(data.words, data.pos, [])
    features, number = tagger.features(attributes, data.words, []), {tag: i for i, tag in enumerate(tagger.labels)}
    gold = torch.tensor([number[tag] for tags in data.tags for tag in tags])
    seconds = {}
    for learner in ("lbfgs", "crfsuite"):
        ends = []
        for iterations in PER_ITERATION:
            begin = perf_counter()
            config = CRFTrainConfig(learner, l2=0.5, iterations=iterations, tolerance=0.0)
            train_crf(CRF(len(number), len(tagger.index), pairs=tagger.crf.pairs), features, gold, config)
            ends.append(perf_counter() - begin)
        seconds[learner] = (ends[1] - ends[0]) / (PER_ITERATION[1] - PER_ITERATION[0])
    ours, theirs = seconds.values()
    case = f"CoNLL-2000, {len(data)} sentences, {len(tagger.index)} attributes"
    emit("crf", case, "one iteration", ours, "crfsuite", theirs, theirs / ours, "s")


def whole_training(size: int, iterations: int, with_peer: bool) -> None:
    """CPU time, peak memory and accuracy of a training in a process of its own."""
    from trellis.corpus.tagged import load_tagged

    pool = reduce(add, (load_tagged(name, "train") for name in SOURCES))
    order = [i * len(pool) // (size + HELD_OUT) for i in range(size + HELD_OUT)]
    held_out = set(order[:: len(order) // HELD_OUT][:HELD_OUT])
    with tempfile.TemporaryDirectory() as folder:
        for name, chosen in (("train", [i for i in order if i not in held_out]), ("test", sorted(held_out))):
            part = pool[chosen]
            rows = (json.dumps(pair) + "\n" for pair in zip(part.words, part.tags, strict=True))
            (Path(folder) / name).write_text("".join(rows))
        tags = len(pool[order].tag_set())
        ours = run_job("trellis", folder, iterations)
        peer = run_job("crfsuite", folder, iterations) if with_peer else {}
    case = f"{size} sentences, {tags} tags"
    for metric, unit in (("cpu_seconds", "s"), ("memory", "GiB"), ("accuracy", "%")):
        theirs = peer.get(metric, peer.get("error"))
        ratio = theirs / ours[metric] if isinstance(theirs, float) and metric != "accuracy" else None
        emit("crf", case, metric, ours[metric], "crfsuite", theirs, ratio, unit)


def run_job(library: str, folder: str, iterations: int) -> dict[str, Any]:
    """The figures of a job in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.crf", library, folder, str(iterations)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def with_trellis(words: Words, tags: Words, iterations: int) -> Tag:
    from trellis.corpus.tagged import Tagged
    from trellis.families.crf.config import CRFTaggerConfig, CRFTrainConfig
    from trellis.families.crf.tagger import CRFTagger

    train = CRFTrainConfig(l2=L2, iterations=iterations, tolerance=TOLERANCE)
    return CRFTagger.train(Tagged(words, tags), CRFTaggerConfig(template="pos"), train).tag


def with_crfsuite(words: Words, tags: Words, iterations: int) -> Tag:
    import pycrfsuite

    from trellis.families.crf.templates import TEMPLATES

    attributes = TEMPLATES["pos"]
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    for sentence, labels in zip(words, tags, strict=True):
        trainer.append(attributes(sentence, None), labels)
    trainer.set_params({"c1": 0.0, "c2": L2, "max_iterations": iterations, "period": 10, "delta": TOLERANCE})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        trainer.train(path)
        tagger = pycrfsuite.Tagger()
        tagger.open(path)
    return lambda rows: [tagger.tag(attributes(row, None)) for row in rows]


def job(library: str, folder: Path, iterations: int) -> None:
    """Train and tag; print the figures of this process."""
    tag = {"trellis": with_trellis, "crfsuite": with_crfsuite}[library](*read(folder / "train"), iterations)
    words, tags = read(folder / "test")
    pairs = list(zip(chain.from_iterable(tags), chain.from_iterable(tag(words)), strict=True))
    figures = {"cpu_seconds": process_time(), "memory": peak_mb(os.getpid()) / 1024}
    print(json.dumps(figures | {"accuracy": 100 * sum(a == b for a, b in pairs) / len(pairs)}))


def read(path: Path) -> tuple[Words, Words]:
    """Words and tags, each string once in memory."""
    with path.open() as file:
        rows = [[[intern(text) for text in column] for column in json.loads(line)] for line in file]
    words, tags = zip(*rows, strict=True)
    return list(words), list(tags)


if __name__ == "__main__":
    job(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
