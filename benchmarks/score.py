"""Scoring and features of PTB lines: a list against one sentence at a time; the memory of a pipe ten times as long."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import trellis
from benchmarks.race import options
from benchmarks.report import emit
from trellis.families.hmm.model import HMM

STATES, LINES, ALONE = 256, 10_000, 200  # lines in the list, and those that are scored alone
PIPE, TIMES = 20_000, 10
WATCH = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""  # in a small process, since children inherit peaks
ALONE_NAME = "one sentence at a time"


def seconds(ask: Callable[[Any], Any], texts: list[Any]) -> float:
    """Seconds per line."""
    begin = perf_counter()
    for text in texts:
        ask(text)
    return (perf_counter() - begin) / sum(1 if isinstance(text, str) else len(text) for text in texts)


def peak(model: Path, lines: list[str], times: int) -> float:
    """MiB of `trellis score`, which reads the lines `times` times from a pipe."""
    command = [sys.executable, "-c", WATCH, sys.executable, "-m", "trellis", "score", str(model), "--quiet"]
    block = "".join(f"{line}\n" for line in lines).encode()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(times):
            process.stdin.write(block)
        process.stdin.close()
        return int(process.stdout.read()) / 1024


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=60.0)
    if not os.environ.get("TRELLIS_DATA"):
        print("score: skipped, since TRELLIS_DATA is not set; the Penn Treebank is read from there.", file=sys.stderr)
        return
    corpus = trellis.read_corpus("ptb")
    model = HMM.new(corpus.vocab, STATES).eval()
    ids = corpus["train"].tokens
    ends = corpus["train"].sentences[: PIPE + 1].tolist()
    text = [model.vocab.join(model.vocab.decode(ids[a : b - 1])) for a, b in pairwise(ends)]
    asks: dict[str, Callable[[Any], Any]] = {"log_prob": model.log_prob, "embed": model.embed}
    for name, ask in asks.items():
        ask(text[:20])
        together = median(seconds(ask, [text[:LINES]]) for _ in range(chosen.repeats))
        alone = seconds(ask, text[:ALONE])
        emit(
            bench="score", case=f"{name}, {LINES:,} PTB lines, {STATES} states", metric="speed", ours=1 / together,
            peer=ALONE_NAME, peers=1 / alone, ratio=alone / together, unit="lines/s", repeats=chosen.repeats,
        )  # fmt: skip
    times = 2 if chosen.quick else TIMES
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        short, long = (peak(Path(folder), text, copies) for copies in (1, times))
    emit(
        bench="score", case=f"trellis score, a pipe of {PIPE * times:,} lines", metric="peak", ours=long,
        peer=f"{PIPE:,} lines", peers=short, ratio=short / long, unit="MiB",
    )  # fmt: skip
