"""A reader from outside in one file: json_lines.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from json_lines import READER
from outside import trellis

import trellis as library
from trellis.corpus.recipe import Recipe
from trellis.errors import TrellisError
from trellis.testing import check_reader

LINES = ['{"text": "The cat sees\\nthe dog"}', "", '{"text": "a dog runs", "id": 2}', '{"text": " "}']
CONTENT = "\n".join(LINES).encode()


def test_conformance() -> None:
    check_reader(READER, CONTENT, [["The cat sees", "the dog"], ["a dog runs"]])
    check_reader(READER, b'{"id": 7}\n{"id": 8}\n', [["7"], ["8"]], Recipe(column="id"))


def write(folder: Path, name: str, lines: int = 30) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps({"text": f"The cat sees dog {i % 3}"}) + "\n" for i in range(lines)))
    return folder / name


def test_files_are_read_by_their_suffix(installed: Path, tmp_path: Path) -> None:
    corpus = library.read_corpus(write(tmp_path, "news.jsonl"))
    assert {"the", "cat", "sees", "dog"} <= {*corpus.vocab.words}
    named = library.read_corpus(write(tmp_path, "news.log"), reader="jsonl")
    assert named.vocab.words == corpus.vocab.words
    for split in ("train", "valid", "test"):
        write(tmp_path / "folder", f"{split}.jsonl")
    assert [*library.read_corpus(tmp_path / "folder").splits] == ["train", "valid", "test"]


def test_mistakes_are_one_sentence(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
    with pytest.raises(TrellisError, match="line 2: no JSON object with a key 'text'"):
        library.read_corpus(tmp_path / "bad.jsonl")
    with pytest.raises(TrellisError, match=r"data.reader is 'jsonlines'.*did you mean 'jsonl'"):
        library.read_corpus(tmp_path / "bad.jsonl", reader="jsonlines")


def test_without_the_package_it_is_plain_text(tmp_path: Path) -> None:
    assert "{" in "".join(library.read_corpus(write(tmp_path, "news.jsonl")).vocab.words)


def test_on_the_command_line(place: Path) -> None:
    file = write(place, "news.jsonl", 60)
    words = ["train", "--model", "bigram", "--data", file, "--run", place / "jsonl", "--json", "--quiet"]
    assert json.loads(trellis(place, *words))["scores"]["values"]["test"] > 1
    (row,) = json.loads(trellis(place, "eval", place / "jsonl", "--json"))
    assert row["perplexity"] > 1
