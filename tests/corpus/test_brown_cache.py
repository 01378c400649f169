"""Brown classes kept in the cache: found once, found anew where the file is broken or the question another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trellis.corpus import brown, cache_entries
from trellis.corpus.brown import brown_clusters
from trellis.storage import save_tensors

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
    assert len(cache_entries()) == 2


def damaged(content: bytes) -> list[bytes]:
    """Broken contents of a file; one of them has classes in range, but not those that were written."""
    return [b"", b"text", content[:-1], content[:-8] + bytes([1 - min(content[-8], 1)]) + content[-7:]]


def test_a_broken_file_is_replaced(own_cache: Path) -> None:
    whole = brown.brown_classes(TOKENS, 4, 12, 1)
    (path,) = own_cache.glob("*.safetensors")
    original = path.read_bytes()
    for content in damaged(original):
        path.write_bytes(content)
        assert (brown.brown_classes(TOKENS, 4, 12, 1) == whole).all()
        assert path.read_bytes() == original
    save_tensors(path, {"classes": np.full(12, 4)})  # a class that there is not
    assert (brown.brown_classes(TOKENS, 4, 12, 1) == whole).all()


def test_a_damaged_file_is_reported_and_a_missing_one_is_not(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    brown.brown_classes(TOKENS, 4, 12, 1)
    assert not caplog.text
    (path,) = own_cache.glob("*.safetensors")
    path.write_bytes(b"damaged")
    brown.brown_classes(TOKENS, 4, 12, 1)
    assert f"{path} is damaged; it is created again." in caplog.text
