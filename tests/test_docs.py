"""Examples in the documentation that show what they print."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def test_kernel_mean_embeddings() -> None:
    failed, tried = doctest.testfile(str(DOCS / "low-rank.md"), module_relative=False, encoding="utf-8")
    assert (failed, tried) == (0, 6)


def test_the_library_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    failed, tried = doctest.testfile(str(DOCS / "python.md"), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert tried > 40
