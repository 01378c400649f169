"""Examples in the documentation that show what they print."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_kernel_mean_embeddings() -> None:
    failed, tried = doctest.testfile(str(DOCS / "low-rank.md"), module_relative=False, encoding="utf-8")
    assert (failed, tried) == (0, 6)
