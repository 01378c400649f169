"""Records of queries: against the whole text at once, as they arrive, and in chunks."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from trellis.corpus import read, records
from trellis.corpus.read import Record, read_texts
from trellis.corpus.recipe import Recipe
from trellis.corpus.records import given_records, read_records
from trellis.corpus.tokenize import DOCUMENT
from trellis.errors import TrellisError

LIMIT = 60.0  # seconds after which a pipe is closed that nobody reads
FASTA = ">one first protein\nMKV\nLA\n\n>none\n>two\nGG\nG"
EVENTS = "user,event\nu,log in\nu,2\nv,3\nu,4\n"
TABLE = 'ID,text\n7,"a, b\nc"\n8,\n\n9,d\n'


def written(folder: Path, text: str, name: str = "file.txt") -> Path:
    data = text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


@pytest.mark.parametrize("name", ["file.x", "file.x.gz"])
@pytest.mark.parametrize(
    ("text", "recipe", "expected"),
    [
        ("a\r\n\n b c", Recipe(), [Record("a", 1), Record("", 2), Record(" b c", 3)]),
        (FASTA, Recipe("fasta"), [Record("MKVLA", 1, "one"), Record("", 5, "none"), Record("GGG", 6, "two")]),
        (TABLE, Recipe("csv", "text"), [Record("a, b c", 2, "7"), Record("", 4, "8"), Record("d", 6, "9")]),
        (TABLE, Recipe("csv", "0"), [Record("ID", 1), Record("7", 2), Record("8", 4), Record("9", 6)]),
        (EVENTS, Recipe("csv", "user:event"), [Record("log_in 2", 2, "u"), Record("3", 4, "v"), Record("4", 5, "u")]),
        ("a:b\nx y\n", Recipe("csv", "a:b"), [Record("x y", 2)]),
    ],
)
def test_records_with_their_lines_and_ids(
    name: str, text: str, recipe: Recipe, expected: list[Record], tmp_path: Path
) -> None:
    assert list(read_records(written(tmp_path, text, name), recipe)) == expected


@pytest.mark.parametrize(("text", "recipe"), [(FASTA, Recipe("fasta")), (TABLE, Recipe("csv", "text"))])
def test_records_are_the_documents_of_training(text: str, recipe: Recipe, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    documents = "".join(read_texts([path], recipe)).split(DOCUMENT)
    assert [d.removesuffix("\n") for d in documents if d.strip()] == [
        r.text for r in read_records(path, recipe) if r.text
    ]


@given(
    st.lists(st.sampled_from(["", " ", "a", "é語 a", "😀" * 9, "a b c d e f g h i"]), min_size=1), st.integers(4, 12)
)
def test_small_blocks_have_the_same_lines(lines: list[str], block: int) -> None:
    with patch.object(records, "BLOCK", block), patch.object(sys, "stdin", standard_input("\n".join(lines) + "\n")):
        assert [record.text for record in read_records(None, Recipe())] == lines


def standard_input(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()))


def test_what_has_arrived_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are processed before the pipe is closed, and a chunk that is not full only where it has to be waited."""
    out, into = os.pipe()
    with os.fdopen(out) as reading, os.fdopen(into, "wb", buffering=0) as writing:
        monkeypatch.setattr(sys, "stdin", reading)
        hanging = threading.Timer(LIMIT, writing.close)
        hanging.start()
        found = read_records(None, Recipe())
        chunks = found.in_chunks(found, lambda record: 1, most=2)
        writing.write(b"one\ntwo\nthree\nfou")
        assert [record.text for record in next(chunks)] == ["one", "two"]
        assert [record.text for record in next(chunks)] == ["three"]
        writing.write(b"r\n>five\n")
        assert [record.text for record in next(chunks)] == ["four", ">five"]
        hanging.cancel()
        writing.close()
        assert list(chunks) == []


def test_chunks_are_computed_one_at_a_time(tmp_path: Path) -> None:
    """What is ahead of the chunk in use is never held."""
    found, taken = read_records(written(tmp_path, "a\n" * 100), Recipe()), []
    chunks = found.in_chunks((taken.append(record) or record for record in found), lambda record: 1, most=7)
    for number, chunk in enumerate(chunks, 1):
        assert len(taken) == min(7 * number, 100)
        assert [record.line for record in chunk] == list(range(7 * number - 6, min(7 * number, 100) + 1))


def test_a_reader_of_files_alone_reads_standard_input_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    alone = read.Reader(read.READERS["text"].read)
    monkeypatch.setitem(read.READERS, "alone", alone)
    monkeypatch.setattr(sys, "stdin", standard_input("a b\n\nc\n"))
    assert [record.text for record in read_records(None, Recipe("alone", documents="file"))] == ["a b", "", "c"]


@pytest.mark.parametrize(
    ("data", "recipe", "message"),
    [
        (b"good\n" * 6 + b"a\nbad \xff\n", Recipe(), r"byte 36 is 0xff \(line 8\)"),
        (b"\nMKV\n>one\nGG\n", Recipe("fasta"), r"line 2 precedes the first header"),
        (b"a,b\n1,2\n\n3\n", Recipe("csv", "b"), r"a row with 1 columns in line 4"),
    ],
)
@pytest.mark.parametrize("block", [5, 1 << 20])
def test_mistakes_have_line_numbers(data: bytes, recipe: Recipe, message: str, block: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with patch.object(read, "BLOCK", block), pytest.raises(TrellisError, match=message) as caught:
        list(read_records(tmp_path / "x", recipe))
    assert str(tmp_path / "x") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "recipe", "message"), [("MKV\n", Recipe("fasta"), "precedes"), ("a,b\n1\n", Recipe("csv", "b"), "columns")]
)
def test_mistakes_on_standard_input(text: str, recipe: Recipe, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", standard_input(text))
    with pytest.raises(TrellisError, match=f"(?i)standard input.*{message}"):
        list(read_records(None, recipe))


def test_sentences_of_one_line_each() -> None:
    assert list(given_records(["a b", ""])) == [Record("a b", 1), Record("", 2)]
    with pytest.raises(TrellisError, match="Sentence 2 has 3 lines"):
        given_records(["a", "b\nc\nd"])


def test_a_pipe_is_asked_for_what_has_arrived() -> None:
    receiving, sending = os.pipe()
    with open(receiving, "rb") as stream, open(sending, "wb", buffering=0) as pipe:
        assert not records._has_more(stream)
        pipe.write(b"a")
        assert records._has_more(stream)
    assert records._has_more(io.BytesIO())


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    for name, text in {"b.txt": "c\n", "a.txt": "a\nb\n", ".hidden": "x\n"}.items():
        (tmp_path / name).write_text(text)
    paths = records.files_of(tmp_path)
    assert paths == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert list(records.read_files(paths, Recipe())) == [Record("a", 1), Record("b", 2), Record("c", 1)]
    assert records.files_of(Path(f"{tmp_path}/b*")) == [tmp_path / "b.txt"]
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "one" / "two" / "deep.log").write_text("a\n")
    assert records.files_of(Path(f"{tmp_path}/**/*.log")) == [tmp_path / "one" / "two" / "deep.log"]
    assert list(records.read_files(paths[1:], Recipe())) == [Record("c", 1)]
    with pytest.raises(TrellisError, match=r"No file matches .*x\*"):
        records.files_of(Path(f"{tmp_path}/x*"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrellisError, match="There are no files in"):
        records.files_of(tmp_path / "empty")
