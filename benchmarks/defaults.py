"""Models trained with no option set, against a Kneser-Ney 5-gram and the best of a small search.

`python -m benchmarks defaults [CORPUS ...] [--budget 5m] [--search]`: perplexity on validation and test text, CPU
minutes and peak memory of each run."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.report import emit
from trellis.config import DataConfig, TaggedDataConfig, load_config
from trellis.corpus import load_corpus
from trellis.corpus.tagged import read_splits
from trellis.families.ngram.model import NGram
from trellis.tasks.lm import READINGS, evaluate

TOKENS = 1_111_000  # of text8, of which nine tenths are for training
BYTES = 2_000_000
SEARCH: dict[bool, list[dict[str, Any]]] = {  # settings of a small search, for words and for other symbols
    False: [
        {"model.states": 2048, "model.emission": "brown", "model.classes": 128},
        {"model.states": 512, "model.emission": "brown", "model.classes": 64},
        {"model.states": 256},
    ],
    True: [{"model.states": 64}, {"model.states": 256}, {"model.states": 512}],
}
NEAR: dict[str, list[dict[str, float]]] = {  # options of the default run and their factors, by emission
    "brown": [
        {"model.states": 2.0},
        {"model.states": 2.0, "model.classes": 2.0},
        {"train.weight_decay": 0.5},
        {"train.weight_decay": 2.0},
    ],
    "cloned": [{"model.states": 0.5}, {"train.pseudocount": 3.0}, {"train.pseudocount": 1 / 3}],
}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks defaults")
    parser.add_argument("corpora", nargs="*", help=f"default: all of {', '.join(CORPORA)}")
    parser.add_argument("--budget", default="", help="time for each run, instead of the default")
    parser.add_argument("--search", action="store_true", help="also train with some settings by hand")
    parser.add_argument("--near", action="store_true", help="also train with changed options of the default run")
    parser.add_argument("--quick", action="store_true", help="one small corpus, 20 seconds")
    chosen, _ = parser.parse_known_args(argv)
    if not os.environ.get("TRELLIS_DATA"):
        print("defaults: skipped, since TRELLIS_DATA is not set; the corpora are read from there.", file=sys.stderr)
        return
    names = ["proteins"] if chosen.quick else chosen.corpora or list(CORPORA)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            report(name, Path(folder), "20s" if chosen.quick else chosen.budget, chosen.search, chosen.near)


def report(name: str, folder: Path, budget: str, search: bool, near: bool) -> None:
    """Train on one corpus with no option set, and report perplexity against the peers."""
    source, options = CORPORA[name](folder / name)
    ours = train(source, options, folder / f"{name}-run", budget)
    corpus = load_corpus(DataConfig(source=source, **options))
    ngram = NGram.fit(corpus.vocab, corpus["train"], 5)
    for split in ("valid", "test"):
        peer = evaluate(ngram, READINGS["sentences"](corpus[split])).perplexity
        emit("defaults", f"{name} {split}", "perplexity", ours[split], "KN-5", peer, peer / ours[split], "", **ours)
    settings = SEARCH[len(corpus.vocab) <= 512] if search else []
    runs = [(one, train(source, options, folder / f"{name}-{n}", budget, one)) for n, one in enumerate(settings)]
    if near:
        runs += around(folder / f"{name}-run", folder)
    if runs:
        best, figures = min(runs, key=lambda pair: pair[1]["valid"])
        tried = [{"settings": one, "valid": found["valid"]} for one, found in runs]
        ratio = figures["valid"] / ours["valid"]
        about = figures | {"settings": best, "tried": tried}
        emit("defaults", f"{name} valid", "perplexity", ours["valid"], "search", figures["valid"], ratio, "", **about)


def around(run: Path, folder: Path) -> list[tuple[dict[str, Any], Any]]:
    """Train with the options that a default run chose, some of them multiplied."""
    chosen = load_config(run / "config.toml")
    found = []
    for n, factors in enumerate(NEAR[chosen.model.emission]):
        values = {name: type(chosen.value(name))(chosen.value(name) * factor) for name, factor in factors.items()}
        arguments = [str(run / "config.toml"), "--no-test"]
        found.append((values, trained(folder / f"{run.name}-{n}", arguments, values)))
    return found


def train(source: str, options: dict[str, Any], run: Path, budget: str, settings: dict[str, Any] | None = None) -> Any:
    """The figures of a run on a text, with some options of the data and of the model."""
    about = {f"data.{key}": value for key, value in options.items()} | (settings or {})
    return trained(run, ["--data", source, *(["--budget", budget] if budget else [])], about)


def trained(run: Path, arguments: list[str], settings: dict[str, Any]) -> Any:
    """The figures of a run in a process of its own."""
    command = [sys.executable, "-m", "trellis", "train", *arguments, "--run", str(run), "--quiet"]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with (run.parent / f"{run.name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError((run.parent / f"{run.name}.log").read_text()[-2000:])
    found = json.loads((run / "results.json").read_text())
    values, training = found["scores"]["values"], found["training"]
    minutes, memory = (usage.ru_utime + usage.ru_stime) / 60, usage.ru_maxrss / 1024
    figures = {"valid": values["valid"], "test": values.get("test"), "train_perplexity": values["train"]}
    return figures | {"minutes": training["seconds"] / 60, "cpu_minutes": minutes, "memory_mb": memory}


def named(name: str, **options: Any) -> Callable[[Path], tuple[str, dict[str, Any]]]:
    return lambda folder: (name, options)


def text8(tokenizer: str) -> Callable[[Path], tuple[str, dict[str, Any]]]:
    """The first tokens of text8: words, or characters."""

    def make(folder: Path) -> tuple[str, dict[str, Any]]:
        with gzip.open(data_folder() / "text8" / "text8_first30M.gz", "rt") as file:
            text = file.read(12 * TOKENS)
        pieces = text.split() if tokenizer == "whitespace" else list(text)
        join = " ".join if tokenizer == "whitespace" else "".join
        cuts = [0, TOKENS * 9 // 10, TOKENS * 19 // 20, TOKENS]
        parts = [join(pieces[a:b]) for a, b in pairwise(cuts)]
        return write(folder, *parts), {"tokenizer": tokenizer} | ({"min_count": 2} if tokenizer == "whitespace" else {})

    return make


def sample(name: str, percent: int) -> Callable[[Path], tuple[str, dict[str, Any]]]:
    """The first lines of the training text."""

    def make(folder: Path) -> tuple[str, dict[str, Any]]:
        train, valid, test = (data_folder() / name / f"{split}.txt" for split in ("train", "valid", "test"))
        lines = train.read_text().splitlines(keepends=True)
        return write(folder, "".join(lines[: len(lines) * percent // 100]), valid.read_text(), test.read_text()), {}

    return make


def words_of(name: str) -> Callable[[Path], tuple[str, dict[str, Any]]]:
    """The words of a tagged data set."""

    def make(folder: Path) -> tuple[str, dict[str, Any]]:
        splits = read_splits(TaggedDataConfig(source=name), None)
        parts = ("".join(" ".join(words) + "\n" for words in splits[key].words) for key in ("train", "valid", "test"))
        return write(folder, *parts), {"min_count": 2}

    return make


def in_bytes(folder: Path) -> tuple[str, dict[str, Any]]:
    """The first bytes of WikiText-2."""
    parts = ((data_folder() / "wikitext-2" / f"{split}.txt").read_text() for split in ("train", "valid", "test"))
    sizes = (BYTES, BYTES // 14, BYTES // 14)
    return write(folder, *(part[:size] for part, size in zip(parts, sizes, strict=True))), {"tokenizer": "bytes"}


def proteins(file: str) -> Callable[[Path], tuple[str, dict[str, Any]]]:
    return lambda folder: (str(data_folder() / "pdb" / file), {})


def write(folder: Path, *parts: str) -> str:
    folder.mkdir()
    for split, text in zip(("train", "valid", "test"), parts, strict=True):
        (folder / f"{split}.txt").write_text(text)
    return str(folder)


def data_folder() -> Path:
    return Path(os.environ["TRELLIS_DATA"])


CORPORA: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "ptb": named("ptb"),
    "ptb-20": sample("ptb", 20),
    "ptb-5": sample("ptb", 5),
    "wikitext-2": named("wikitext-2"),
    "text8-words": text8("whitespace"),
    "medpost": words_of("medpost"),
    "genia": words_of("genia"),
    "python-docs": named("python-docs"),
    "text8-characters": text8("characters"),
    "wikitext-2-bytes": in_bytes,
    "proteins": proteins("pdb_first1024.fasta"),
    "proteins-nr": proteins("nrPDB-GO_2019.06.18_test_sequences.fasta"),
    "proteins-1000": proteins("pdb_seqres_2022_09_28__subsampled_1000.fasta"),
}
