"""Several processes print what one prints, in the same order; several files are read as one."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from trellis.cli import arguments
from trellis.cli.jobs import each_chunk
from trellis.cli.main import main
from trellis.errors import TrellisError

ROUNDING = 1e-5  # of float32, where batches of another size sum in another order
LINES = [f"return the {word} of a list" for word in ("first", "last", "new", "value", "name") * 8]


def printed(capsys: pytest.CaptureFixture[str], *given: object) -> list[dict]:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, given), "--json", "--device", "cpu", "--quiet"])
    assert ended.value.code == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The lines in three files, two of them compressed."""
    for number, part in enumerate((LINES[:11], LINES[11:12], LINES[12:])):
        text = ("\n".join(part) + "\n").encode()
        name = tmp_path / f"part-{number}.txt"
        name.write_bytes(text) if number == 1 else (tmp_path / f"{name.name}.gz").write_bytes(gzip.compress(text))
    return tmp_path


def test_scores_of_shards_in_processes(
    shards: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "TOKENS", 32)
    monkeypatch.setattr(arguments.chunks_of, "__defaults__", (32, None))
    whole = printed(capsys, "score", "demo", *LINES)
    assert [row["text"] for row in whole] == LINES
    assert printed(capsys, "score", "demo", "-i", shards, "--jobs", 3) == whole
    assert printed(capsys, "score", "demo", "-i", shards / "part-*", "--jobs", 2) == whole


def test_features_in_processes(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = printed(capsys, "embed", "demo", "-i", shards, "--top", 1)
    assert len(alone) > len(LINES)
    together = printed(capsys, "embed", "demo", "-i", shards, "--top", 1, "--jobs", 2)
    for row, other in zip(together, alone, strict=True):
        assert row.pop("probability") == pytest.approx(other.pop("probability"), rel=ROUNDING)
        assert row == other


def test_a_pattern_without_files_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["score", "demo", "-i", str(tmp_path / "*.gz")])
    assert ended.value.code == 2
    assert "No file matches" in capsys.readouterr().err


def test_a_killed_process_is_one_sentence() -> None:
    with pytest.raises(TrellisError, match="has ended"):
        list(each_chunk(lambda chunk: os.kill(os.getpid(), 9), [1, 2], 2, "cpu"))
    with pytest.raises(TrellisError, match="--device cpu"):
        each_chunk(len, [], 2, "cuda")
