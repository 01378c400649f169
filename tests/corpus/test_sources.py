"""Finding files, and the cache they end up in."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from trellis.config import GIVEN, DataConfig
from trellis.corpus import cache_entries, cache_folder, clear_cache, load, load_corpus, read
from trellis.errors import TrellisError


def test_a_folder_with_splits_keeps_them(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.txt").write_text("a b\na\n")
    (folder / "valid.txt.gz").write_bytes(gzip.compress(b"b a c\n"))
    corpus = load_corpus(DataConfig(str(folder), min_count=1), cache)
    words = {name: corpus.vocab.decode(split.tokens) for name, split in corpus.splits.items()}
    assert words == {"train": ["a", "b", "<eos>", "a", "<eos>"], "valid": ["b", "a", "<unk>", "<eos>"]}
    with pytest.raises(TrellisError, match="no test split; it has train, valid"):
        corpus["test"]


def test_the_files_of_a_folder_are_documents_in_order_of_name(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "many"
    (folder / "deep").mkdir(parents=True)
    for i in range(40):
        (folder / "deep" / f"{i:02}.txt").write_text(f"w{i} w{i}\nw{i}\n")
    (folder / ".hidden").write_text("secret\n")
    corpus = load_corpus(DataConfig(str(folder), unk=True), cache)
    sizes = {name: split.documents.size - 1 for name, split in corpus.splits.items()}
    assert sizes == {"train": 36, "valid": 2, "test": 2}
    words = [word for word in corpus.vocab.decode(corpus["train"].tokens) if word != "<eos>"]
    assert words == sorted(words, key=lambda word: int(word[1:]))
    assert "secret" not in corpus.vocab.words


def test_standard_input(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a b\n" * 30)))
    corpus = load_corpus(DataConfig("-"), cache)
    assert sum(split.tokens.size for split in corpus.splits.values()) == 90
    assert sorted(path.name for path in cache.iterdir()) == [".lock", "corpora"]


def test_what_cannot_be_found(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    with pytest.raises(
        TrellisError,
        match=r"No file, folder or built-in corpus is called nowhere.*corpora are python-docs, ptb, wikitext",
    ):
        load_corpus(DataConfig("nowhere"), cache)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrellisError, match="empty contains no files"):
        load_corpus(DataConfig(str(tmp_path / "empty")), cache)


def test_text8_is_divided_by_position(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text8").mkdir()
    (tmp_path / "text8" / "text8.gz").write_bytes(gzip.compress(" ".join(f"w{i}" for i in range(1000)).encode()))
    monkeypatch.setenv("TRELLIS_DATA", str(tmp_path))
    corpus = load_corpus(DataConfig("text8", min_count=1, unk=None), cache)
    decoded = {name: corpus.vocab.decode(split.tokens) for name, split in corpus.splits.items()}
    assert decoded["train"] == [*(f"w{i}" for i in range(901)), "<eos>"]
    assert sum(corpus.vocab.counts) == len(decoded["train"])
    assert {name: len(words) for name, words in decoded.items()} == {"train": 902, "valid": 51, "test": 50}


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRELLIS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "trellis"
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"


def test_listing_and_clearing_the_cache(load, cache: Path) -> None:
    assert cache_entries(cache) == []
    load("a b\n" * 20)
    (entry,) = cache_entries(cache)
    assert entry.name.startswith("corpora/text.txt-")
    assert entry.size == sum(file.stat().st_size for file in entry.path.iterdir()) > 0
    (cache / "keep.me").write_text("not an entry")
    assert clear_cache(cache) == [entry]
    assert cache_entries(cache) == []
    assert (cache / "keep.me").exists()


def test_one_file_per_split(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "train.txt").write_text("a b\n")
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"c d\n"))
    corpus = load_corpus(DataConfig(str(tmp_path), min_count=1), cache)
    assert corpus.vocab.decode(corpus["train"].tokens) == ["a", "b", "<eos>"]


def test_a_text_from_python_cannot_be_read_again(cache: Path) -> None:
    with pytest.raises(TrellisError, match="came from Python"):
        load_corpus(DataConfig(f"{GIVEN}1 sentences"), cache)


def test_a_folder_with_two_formats(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b\n" * 20)
    (tmp_path / "valid.fasta").write_text(">a\nMK\n")
    with pytest.raises(
        TrellisError, match=r"valid\.fasta has the suffix of the reader fasta, other files that of text"
    ):
        load_corpus(DataConfig(str(tmp_path)))


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a b\n" * 20)
    monkeypatch.setattr(load.Path, "open", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(TrellisError, match=r"Cannot read .*a\.txt: Input/output error"):
        load._add_file(hashlib.sha256(), tmp_path / "a.txt")


def test_suffixes_of_readers_from_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "entries", lambda group: {"own": "package:READER"})
    own = replace(read.READERS["csv"], suffixes=(".own", ".csv", ""))
    monkeypatch.setattr(read, "find_reader", {"own": own}.__getitem__)
    suffixes = (".own", ".csv", ".other", "")
    assert [read.reader_of_suffix(one, "text") for one in suffixes] == ["own", "csv", "text", "text"]
