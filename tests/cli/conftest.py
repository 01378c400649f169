"""Every test of a command has a cache of its own; most want a text or a trained model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from running import SENTENCES, SMALL, run

TEXT = "\n".join(SENTENCES * 12) + "\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a run trained on it, and the cache of the training."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRELLIS_CACHE", str(folder / "cache"))
        run("train", "--data", folder / "text.txt", "--run", folder / "run", "--quiet", *SMALL)
    return folder


@pytest.fixture
def model(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A copy of the trained run, and of its cache."""
    for name in ("run", "cache"):
        shutil.copytree(trained / name, tmp_path / name)
    capsys.readouterr()
    return tmp_path / "run"
