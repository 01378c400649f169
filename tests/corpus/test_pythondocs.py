"""The built-in corpus: its size, its prose, and that it is the same every time."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from trellis.config import DataConfig
from trellis.corpus import load_corpus, sources
from trellis.corpus.pythondocs import _sentences, _split_of

BUILD = (
    "import sys, pathlib; from trellis.corpus.pythondocs import _write_splits; _write_splits(pathlib.Path(sys.argv[1]))"
)


def test_the_corpus_of_this_interpreter(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    with subprocess.Popen([sys.executable, "-c", BUILD, str(tmp_path / "again")], env=environment) as again:
        corpus = load_corpus(DataConfig("python-docs"), cache)
    assert again.returncode == 0
    (folder,) = (cache / "sources").glob("python-docs*")
    for split in sources.SPLITS:
        assert (folder / f"{split}.txt").read_bytes() == (tmp_path / "again" / f"{split}.txt").read_bytes()

    sizes = {name: split.tokens.size for name, split in corpus.splits.items()}
    assert 350_000 < sum(sizes.values()) < 1_000_000
    assert 0.02 < min(sizes["valid"], sizes["test"]) / sizes["train"] < 0.15
    assert 5_000 < len(corpus.vocab) < 15_000
    assert platform.python_version() in corpus.description
    frequent = set(corpus.vocab.words[:40])
    assert {"the", "a", "is", "to", "of", "and", "return"} <= frequent
    assert corpus["train"].documents.size > 300


def test_prose_is_reflowed_and_code_dropped() -> None:
    docstring = """Return a thing. It is
        often a good thing.

        >>> thing(1)
        2

        x = [1, 2, 3]; y = {**x}

        - the first item of a list
        - the second item of it

        Return a thing. It is often a good thing.
        """
    assert list(_sentences(docstring, set())) == [
        "Return a thing.",
        "It is often a good thing.",
        "the first item of a list",
        "the second item of it",
    ]


def test_the_split_of_a_document_hangs_on_its_name_alone() -> None:
    found = [_split_of(f"module{i}") for i in range(4000)]
    assert 0.03 < found.count("valid") / len(found) < 0.07
    assert 0.03 < found.count("test") / len(found) < 0.07
    assert _split_of("os") == _split_of("os")
