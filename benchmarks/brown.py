"""Brown clustering against wcluster: time, memory and mutual information on PTB and text8."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.report import emit, peak_mb
from trellis.corpus.brown import BigramCounts, average_mutual_information, brown_clusters, count_bigrams
from trellis.corpus.brown_paths import read_paths
from trellis.corpus.tokenize import EOS
from trellis.errors import TrellisError

TEXT_BLOCK = 1 << 20  # characters read at a time
POLL = 0.02  # seconds between measurements of the memory of a running program


class Case(NamedTuple):
    """A text below the data folder and a number of classes."""

    text: str
    classes: int


CASES = {
    "ptb-128": Case("ptb/train.txt", 128),
    "ptb-1000": Case("ptb/train.txt", 1000),
    "text8-256": Case("text8/text8_first30M.gz", 256),
}


class Run(NamedTuple):
    """The time and memory that a program needs, from the text to the paths file."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    jit_seconds: float = 0.0  # compilation, not part of the seconds
    start_mb: float = 0.0  # the part of the peak due to the interpreter, libraries and compiled code


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks brown", description=__doc__)
    parser.add_argument("--wcluster", type=Path, help="a wcluster binary to compare with")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--data", type=Path, default=os.environ.get("TRELLIS_DATA"), help="default: $TRELLIS_DATA")
    options, _ = parser.parse_known_args(argv)
    if options.data is None:
        raise TrellisError("The brown benchmark reads PTB and text8; set TRELLIS_DATA or pass --data.")
    for name in options.cases:
        compare(name, CASES[name], options.data, options.wcluster)


def compare(name: str, case: Case, data: Path, wcluster: Path | None) -> None:
    """Run both programs on one case and report the results."""
    text = Path(data) / case.text
    words, counts = count_text(text)

    def kept(paths: Path) -> float:
        found, clustering = read_paths(paths)
        class_of = dict(zip(found, clustering.assignment.tolist(), strict=True))
        return average_mutual_information(
            counts.bigrams, np.array([class_of.get(word, len(clustering.paths)) for word in words])
        )

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        ours = run_ours(text, case.classes, work / "ours")
        our_ami = kept(work / "ours")
        theirs = run_wcluster(wcluster, text, case.classes, work) if wcluster else None
        their_ami = kept(work / "wcluster" / "paths") if theirs else None
    apart = {"seconds": {"jit_seconds": ours.jit_seconds}, "cpu_seconds": {}, "peak_mb": {"start_mb": ours.start_mb}}
    for metric, more in apart.items():
        mine, other = getattr(ours, metric), getattr(theirs, metric, None)
        ratio, unit = other / mine if other else None, "MB" if metric == "peak_mb" else "s"
        emit("brown", name, metric, mine, "wcluster", other, ratio, unit, **more)
    ratio = our_ami / their_ami if their_ami else None
    emit(
        "brown",
        name,
        "ami",
        our_ami,
        "wcluster",
        their_ami,
        ratio,
        "nats",
        words=len(words),
        bigrams=counts.bigrams.nnz,
    )


def count_text(path: Path) -> tuple[list[str], BigramCounts]:
    """Words of a text file (or its .gz), most frequent first, and their counts; every newline is an `<eos>`."""
    index: defaultdict[str, int] = defaultdict()
    index.default_factory = index.__len__
    ids = (np.fromiter(map(index.__getitem__, words), np.int64, len(words)) for words in read_words(path))
    counts = count_bigrams(ids)
    order, words = np.argsort(-counts.words, kind="stable"), list(index)
    return [words[i] for i in order], BigramCounts(counts.words[order], counts.bigrams[order][:, order])


def read_words(path: Path) -> Iterator[list[str]]:
    """The words of a text in pieces of bounded length, `<eos>` for every newline."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        cut = ""
        while block := file.read(TEXT_BLOCK):
            text = (cut + block).replace("\n", f" {EOS} ")
            words = text.split()
            cut = "" if text[-1].isspace() else words.pop()
            yield words
        yield [cut] if cut else []


def run_ours(text: Path, classes: int, paths: Path) -> Run:
    """Cluster in a separate process, so that the peak memory is that of one case."""
    command = [sys.executable, "-m", "benchmarks.brown", str(text), str(classes), str(paths)]
    return Run(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def measure(text: Path, classes: int, paths: Path) -> Run:
    """Compile on a toy text, then time counting, clustering and writing."""
    before = time.perf_counter()
    toy = count_bigrams(np.arange(200) ** 2 % 17)
    brown_clusters(toy, 4)
    jit, start_mb = time.perf_counter() - before, peak_mb(os.getpid())
    start, cpu = time.perf_counter(), time.process_time()
    words, counts = count_text(text)
    brown_clusters(counts, classes).save(paths, words)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return Run(seconds, cpu_seconds, peak_mb(os.getpid()), jit, start_mb)


def run_wcluster(binary: Path, text: Path, classes: int, work: Path) -> Run:
    """Run wcluster on the same words, with one thread and default settings."""
    with (work / "text").open("w", encoding="utf-8") as plain:
        for words in read_words(text):
            plain.write("".join(f"{word}\n" if word == EOS else f"{word} " for word in words))
    command = [str(binary.resolve()), "--text", "text", "--c", str(classes), "--output_dir", "wcluster"]
    before, cpu, peak = time.perf_counter(), os.times(), 0.0
    with subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        while program.poll() is None:
            peak = max(peak, peak_mb(program.pid))
            time.sleep(POLL)
    if program.returncode:
        raise TrellisError(f"{binary} failed with exit code {program.returncode}.")
    seconds, after = time.perf_counter() - before, os.times()
    used = after.children_user + after.children_system - cpu.children_user - cpu.children_system
    return Run(seconds, used, peak)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))._asdict()))
