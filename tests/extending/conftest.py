"""The recipes as a package that is installed beside the library."""

from __future__ import annotations

from pathlib import Path

import pytest
from outside import install

TEXT = "the cat sees the dog\n" * 30 + "stocks fell and bonds rose\n" * 30


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and the metadata of an installed distribution that has the recipes."""
    folder = tmp_path_factory.mktemp("outside")
    install(folder)
    (folder / "text.txt").write_text(TEXT)
    return folder


@pytest.fixture
def installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, in this process."""
    monkeypatch.syspath_prepend(str(place))
    return place
