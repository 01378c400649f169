"""A cache under attack: damage is noticed and mended, and killed processes leave nothing behind."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from trellis.config import DataConfig
from trellis.corpus import cache, encode
from trellis.corpus.cache import cache_entries, is_intact, new_entry
from trellis.corpus.load import Corpus, load_corpus
from trellis.corpus.pythondocs import python_docs
from trellis.corpus.vocab import Vocabulary
from trellis.storage import BUILDING, LOCK, claimed, workshop

TEXT = "the cat sees a dog\na dog sees the cat\nthe dog sees\n" * 30
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "last": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "zeroed": lambda data: bytes(len(data)),
    "shorter": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"\0",
    "empty": lambda data: b"",
}


@pytest.fixture
def load(tmp_path: Path) -> Callable[[], Corpus]:
    (tmp_path / "text.txt").write_text(TEXT)
    return lambda: load_corpus(DataConfig(str(tmp_path / "text.txt")), tmp_path / "cache")


def contents(corpus: Corpus) -> list[object]:
    arrays = [array.tolist() for split in corpus.splits.values() for array in split if array is not None]
    return [corpus.vocab, *arrays]


def test_texts_of_one_size_and_other_vocabularies_have_entries_of_their_own(tmp_path: Path) -> None:
    config, folder = DataConfig(str(tmp_path / "text.txt")), tmp_path / "cache"
    for words in (["a", "b"], ["b", "a"]):
        (tmp_path / "text.txt").write_text(" ".join(words) + "\na b" * 99)
        corpus = load_corpus(config, folder)
        assert corpus.vocab.decode(corpus["train"].tokens[:2]) == words
    other = Vocabulary.choose({"a": 3}, unk=True)
    assert load_corpus(config, folder, other).vocab == other
    assert load_corpus(config, folder).vocab == corpus.vocab


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_of_an_entry_is_checked(
    load: Callable[[], Corpus], tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = contents(load())
    (entry,) = cache_entries(tmp_path / "cache")
    files = sorted(entry.path.iterdir())
    assert {"meta.json", "vocab.json", "train.tokens", cache.CHECKSUMS} <= {file.name for file in files}
    for file in files:
        if not file.stat().st_size and damage != "longer":
            continue
        file.write_bytes(DAMAGE[damage](file.read_bytes() or b"\0"))
        caplog.clear()
        assert contents(load()) == whole
        assert "is damaged" in caplog.text
        assert is_intact(entry.path)
    assert [entry.path] == [one.path for one in cache_entries(tmp_path / "cache")]


def test_the_list_of_checksums_is_checked(load: Callable[[], Corpus], tmp_path: Path) -> None:
    load()
    (entry,) = cache_entries(tmp_path / "cache")
    recorded = json.loads((entry.path / cache.CHECKSUMS).read_text())
    del recorded["files"]["train.tokens"]
    (entry.path / cache.CHECKSUMS).write_text(json.dumps(recorded))
    assert not is_intact(entry.path)


def test_an_intact_entry_is_read_once(load: Callable[[], Corpus], caplog: pytest.LogCaptureFixture) -> None:
    whole = contents(load())
    cache._known_checksum.cache_clear()
    with patch.object(cache.zlib, "crc32", wraps=zlib.crc32) as counted:
        assert contents(load()) == whole
        first = counted.call_count
        with patch.object(encode, "_number_tokens", side_effect=AssertionError("encoded again")):
            assert contents(load()) == whole
        assert 0 < counted.call_count - first <= 1  # of the list of checksums itself
    assert "damaged" not in caplog.text


def test_generated_texts_are_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def write(folder: Path) -> None:
        for split in ("train", "valid", "test"):
            (folder / f"{split}.txt").write_text(f"the {split} text\n")

    with patch("trellis.corpus.pythondocs._write_splits", write):
        folder = python_docs(tmp_path)
        (folder / "valid.txt").write_text("no longer valid")
        assert (python_docs(tmp_path) / "valid.txt").read_text() == "the valid text\n"
    assert "is damaged" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


KILLED = """
import os, signal, sys
from pathlib import Path
from trellis.corpus.cache import new_entry
with new_entry(Path(sys.argv[1])) as made:
    (made / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_killed_processes_leave_is_removed(tmp_path: Path) -> None:
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "entry")], check=False)
        assert ended.returncode == -signal.SIGKILL
        assert len(list(tmp_path.glob(f"{BUILDING}*"))) == 1  # the second one removed what the first one left
    with new_entry(tmp_path / "entry") as made:
        (made / "whole").write_text("whole")
    assert sorted(os.listdir(tmp_path)) == [LOCK, "entry"]


def test_folders_in_use_are_not_removed(tmp_path: Path) -> None:
    with workshop(tmp_path) as one:
        with workshop(tmp_path) as other, claimed(tmp_path):
            assert one.exists()
            assert other.exists()
        assert one.exists()
        assert not other.exists()
    assert not one.exists()


def test_two_processes_may_make_the_same_entry(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    cache._rename_unless_there(tmp_path / "mine", tmp_path / "theirs")
    assert (tmp_path / "theirs" / "file").read_text() == "theirs"
    with pytest.raises(FileNotFoundError):
        cache._rename_unless_there(tmp_path / "none", tmp_path / "other")
    cache._rename_unless_there(tmp_path / "mine", tmp_path / "other")
    assert (tmp_path / "other" / "file").read_text() == "mine"
