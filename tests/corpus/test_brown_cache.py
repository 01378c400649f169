"""Brown classes kept in the cache: found once, found anew where the file is broken or the question another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trellis.corpus import brown, cache_entries
from trellis.corpus.brown import brown_clusters

TOKENS = np.random.default_rng(0).integers(0, 12, 400)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    return tmp_path / "classes"


def refuse(*given: object, **more: object) -> None:
    raise AssertionError("clustered again")


def test_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = brown_clusters(TOKENS, 4, vocab_size=12, seed=1).assignment
    first = brown.brown_classes(TOKENS, 4, 12, 1)
    monkeypatch.setattr(brown, "brown_clusters", refuse)
    assert (first == expected).all()
    assert (brown.brown_classes(TOKENS, 4, 12, 1) == expected).all()
    assert [entry.name.split("/")[0] for entry in cache_entries()] == ["classes"]


@pytest.mark.parametrize(
    "question",
    [(TOKENS[:-1], 4, 12, 1), (TOKENS, 5, 12, 1), (TOKENS, 4, 13, 1), (TOKENS, 4, 12, 2), (TOKENS, 4, 12, 1, (3,))],
)
def test_another_question(question: tuple[Any, ...], own_cache: Path) -> None:
    brown.brown_classes(TOKENS, 4, 12, 1)
    brown.brown_classes(*question)
    assert len(list(own_cache.iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00v\x00{'descr'", b"text", None])
def test_a_broken_file_is_replaced(content: bytes | None, own_cache: Path) -> None:
    whole = brown.brown_classes(TOKENS, 4, 12, 1)
    (path,) = own_cache.iterdir()
    if content is None:
        np.save(path, np.full(12, 4))  # a class that there is not
    else:
        path.write_bytes(content)
    assert (brown.brown_classes(TOKENS, 4, 12, 1) == whole).all()
    assert (np.load(path) == whole).all()
