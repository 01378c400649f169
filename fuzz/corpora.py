"""Corpora: texts of odd sizes and bytes, and options of [data]; a unigram model is trained on what is accepted."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import trellis
from fuzz.mutations import BYTES, any_number, any_text, any_value
from fuzz.small import TEXT, WORDS

CHOICES: dict[str, list[Any]] = {
    "reader": [None, "text", "fasta", "csv", "conll"],
    "column": [None, "0", "text", "a:b", "-1", "9" * 30, ""],
    "tokenizer": [None, "whitespace", "words", "characters", "bytes", "symbols", "x"],
    "documents": [None, "file", "blank", "heading"],
    "heading": [None, "^the", "(", "(a+)$", "\\", "(a+)+$", "(a|aa)*$", "(.*a){9}b", "(" * 900 + ")" * 900],
    "lower": [None, True],
    "digits": [None, True],
    "unk": [None, True, False],
    "min_count": [None, 0, 1, 2, 10**6, -1, 2**64],
    "max_size": [None, 0, 1, 2, 3, 2**63, -1],
    "min_letters": [0.0, 0.5, 1.0],
    "valid_fraction": [0.05, 0.0, 0.5, 0.9999, 1e-300],
    "test_fraction": [0.05, 0.0, 0.5, 0.9999],
}


class Target:
    """Read a corpus and train a unigram model on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "texts"
        self.folder.mkdir()

    def honest(self) -> None:
        (self.folder / "a.txt").write_text(TEXT)
        trellis.train(self.folder / "a.txt", family="unigram", device="cpu", eval={"ngram": 0})

    def case(self, random: Random) -> None:
        options = {key: random.choice(CHOICES[key]) for key in CHOICES if random.random() < 0.2}
        options |= {random.choice([*CHOICES]): any_value(random)} if random.random() < 0.1 else {}
        trellis.train(self.text(random), family="unigram", device="cpu", eval={"ngram": 0}, **options)

    def text(self, random: Random) -> Any:
        """A file, a folder, or sentences."""
        lines = [any_text(random, WORDS) for _ in range(random.choice([0, 1, 1, 2, 3, 10, 40]))]
        kind = random.choice(["sentences", "tokens", "file", "file", "file", "folder"])
        if kind == "sentences":
            return lines
        if kind == "tokens":
            return [
                [random.choice([word, random.randint(-3, 2**65), any_number(random)]) for word in line.split()]
                for line in lines
            ]
        data = "\n".join(lines).encode() + random.choice([b"", b"\n", *BYTES])
        path = self.folder / f"a{random.choice(['.txt', '', '.csv', '.fasta', '.gz'])}"
        for old in self.folder.iterdir():
            old.unlink()
        path.write_bytes(data)
        return self.folder if kind == "folder" else path
