"""Readers of files: text, FASTA, CSV, tagged text, ARPA, word2vec, Brown paths; plain and gzipped."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import trellis
from fuzz.mutations import any_number, changed_bytes, changed_text
from fuzz.small import SENTENCES, TAGGED, TEXT, WORDS, model
from trellis.corpus.brown_paths import read_paths
from trellis.corpus.recipe import Recipe
from trellis.corpus.records import read_records
from trellis.corpus.tagged import read_tagged
from trellis.families.crf.encoders import WordVectors
from trellis.families.ngram.arpa import write_arpa

CONLL = "\n".join("".join(f"{word} {tag} O\n" for word, tag in sentence) for sentence in TAGGED[:5])
CONLLU = "\n".join(
    "# text\n" + "".join(f"{i}\t{w}\t_\t{t}\t{t}\t_\t0\troot\t_\t_\n" for i, (w, t) in enumerate(sentence, 1))
    for sentence in TAGGED[:5]
)
JOINED = "\n".join(" ".join(f"{word}_{tag}" for word, tag in sentence) for sentence in TAGGED[:5])
MEDPOST = "".join(f"P{i}A{i}\n{line}\n" for i, line in enumerate(JOINED.split("\n")))
FASTA = "".join(f">r{i} x\nACGT\nAC\n" for i in range(40))
CSV = "user,event,text\n" + "".join(f'u{i // 3},"e {i % 4}",{SENTENCES[i % 5]}\n' for i in range(60))
VECTORS = f"{len(WORDS)} 3\n" + "".join(f"{word} 0.1 -2 3e-1\n" for word in WORDS)
PATHS = "".join(f"{i % 4:02b}\t{word}\t{i + 1}\n" for i, word in enumerate(WORDS))


def records(reader: str, column: str = "") -> Callable[[Path], Any]:
    return lambda path: list(read_records(path, Recipe(reader=reader, column=column)))


def corpus(**options: Any) -> Callable[[Path], Any]:
    return lambda path: trellis.read_corpus(path, **options)


def tagged(format: str, column: str | None = None) -> Callable[[Path], Any]:
    return lambda path: read_tagged(path, format, column)


class Target:
    """Read changed files, each with its reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_arpa(model("ngram"), folder / "lm.arpa")
        arpa = (folder / "lm.arpa").read_text()
        self.files: list[tuple[str, str, Callable[[Path], Any]]] = [
            ("text.txt", TEXT, corpus()),
            ("text.txt", TEXT, corpus(tokenizer="characters", documents="blank", lower=True, digits=True)),
            ("text.txt", TEXT, corpus(tokenizer="bytes", documents="heading", heading="^the")),
            ("text.txt", TEXT, records("text")),
            ("x.fasta", FASTA, corpus()),
            ("x.fasta", FASTA, records("fasta")),
            ("x.csv", CSV, corpus(column="user:event")),
            ("x.csv", CSV, corpus(column="text")),
            ("x.csv", CSV, records("csv", "text")),
            ("x.conll", CONLL, tagged("conll")),
            ("x.conll", CONLL, tagged("conll", "1")),
            ("x.conllu", CONLLU, tagged("conllu")),
            ("x.ioc", MEDPOST, tagged("medpost")),
            ("x.txt", JOINED, tagged("word_tag")),
            ("x.arpa", arpa, trellis.load),
            ("x.vec", VECTORS, WordVectors),
            ("paths", PATHS, read_paths),
        ]

    def honest(self) -> None:
        for name, text, read in self.files:
            (self.folder / name).write_text(text)
            read(self.folder / name)

    def case(self, random: Random) -> None:
        name, text, read = random.choice(self.files)
        data = changed_text(random, text)
        if random.random() < 0.1:
            name, data = f"{name}.gz", gzip.compress(data, 1)
            data = changed_bytes(random, data) if random.random() < 0.5 else data
        path = self.folder / name
        path.write_bytes(data)
        if name.startswith("x.conll") and random.random() < 0.1:
            read_tagged(path, "conll", any_number(random))
        read(path)
