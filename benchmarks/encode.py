"""Encoding text8: words per second and peak memory, against a plain Counter and dict."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.race import options
from benchmarks.report import emit
from trellis.config import DataConfig
from trellis.corpus import load_corpus
from trellis.corpus.sources import find_source

MIN_COUNT = 5


def ours(folder: Path) -> int:
    """Tokenise, count, encode, write and memory-map; returns the number of words."""
    corpus = load_corpus(DataConfig(source="text8", min_count=MIN_COUNT), cache=folder)
    return sum(split.tokens.size for split in corpus.splits.values())


def plain(folder: Path) -> int:
    """The same in plain Python, with the whole text in memory."""
    with find_source("text8", folder) as source:
        path = next(iter(source.files.values()))[0]
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        words = file.read().split()
    counts = Counter(words)
    number = {word: i for i, (word, count) in enumerate(counts.most_common(), 1) if count >= MIN_COUNT}
    np.save(folder / "tokens.npy", np.array([number.get(word, 0) for word in words], np.int32))
    return len(words)


ENCODERS: dict[str, Callable[[Path], int]] = {"trellis": ours, "counter": plain}


def measure(name: str) -> dict[str, float]:
    """Encode once in a separate process, into a new folder."""
    command = [sys.executable, "-m", "benchmarks.encode", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=60.0)
    if not os.environ.get("TRELLIS_DATA"):
        print("encode: skipped, since TRELLIS_DATA is not set; text8 is read from there.", file=sys.stderr)
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ENCODERS}
    for _ in range(chosen.repeats):
        for name, results in runs.items():
            results.append(measure(name))
    for metric, unit, larger_is_better in (("words_per_second", "words/s", True), ("peak", "MiB", False)):
        mine, peer = (median(run[metric] for run in runs[name]) for name in ENCODERS)
        emit(
            bench="encode", case=f"text8, {runs['trellis'][0]['words']:,} words", metric=metric, ours=mine,
            peer="Counter and dict", peers=peer, ratio=mine / peer if larger_is_better else peer / mine, unit=unit,
            repeats=chosen.repeats,
        )  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        begin = perf_counter()
        words = ENCODERS[sys.argv[1]](Path(folder))
        speed = words / (perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"words": words, "words_per_second": speed, "peak": peak}))
