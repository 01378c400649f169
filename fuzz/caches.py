"""Cache entries: changed, emptied and missing files; the corpus must be the same, or be refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import trellis
from fuzz.harness import FindingError
from fuzz.mutations import changed_bytes
from fuzz.small import TEXT
from trellis.families.hmm import FAMILY


class Target:
    """Read a corpus from a damaged cache."""

    def __init__(self, folder: Path) -> None:
        self.text, self.cache, self.kept = folder / "text.txt", folder / "cache", folder / "kept"
        self.text.write_text(TEXT)
        self.wanted = self.read()
        trellis.train(self.text, family=FAMILY.name, emission="brown", classes=2, states=2, epochs=1, device="cpu")
        shutil.copytree(self.cache, self.kept)
        self.files = sorted(path.relative_to(self.kept) for path in self.kept.rglob("*") if path.is_file())

    def read(self) -> Any:
        corpus = trellis.read_corpus(self.text)
        splits = {name: (split.tokens.tolist(), list(split.unknown_words())) for name, split in corpus.splits.items()}
        return corpus.vocab, splits

    def honest(self) -> None:
        assert self.read() == self.wanted

    def case(self, random: Random) -> None:
        shutil.rmtree(self.cache)
        shutil.copytree(self.kept, self.cache)
        for _ in range(random.choice([1, 1, 2])):
            path = self.cache / random.choice(self.files)
            if random.random() < 0.1 and not path.is_dir():
                path.unlink(missing_ok=True)
                if random.random() < 0.5:
                    path.mkdir()
            elif path.is_file():
                data = path.read_bytes()
                change = random.choice([changed_bytes(random, data), bytes(len(data)), b"", data[::-1]])
                path.write_bytes(change)
        if self.read() != self.wanted:
            raise FindingError("the corpus has changed")
        if random.random() < 0.01:
            trellis.train(self.text, emission="brown", classes=2, states=2, epochs=1, device="cpu")
