"""Every test of a command has a cache of its own; most want a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import SENTENCES


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("\n".join(SENTENCES * 12) + "\n")
    return file
