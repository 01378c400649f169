"""What the corpus tests share: a quiet program, a cache of their own, and corpora in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trellis.config import DataConfig
from trellis.corpus import Corpus, load_corpus
from trellis.progress import set_quiet


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    set_quiet(True)
    yield
    set_quiet(False)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def load(tmp_path: Path, cache: Path) -> Callable[..., Corpus]:
    """load(text, **choices) writes the text to a file and loads it; bytes go in as they are."""

    def write_and_load(text: str | bytes, name: str = "text.txt", **choices: object) -> Corpus:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_corpus(DataConfig(source=str(path), **choices), cache)

    return write_and_load
