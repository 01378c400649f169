"""Arrow and Parquet tables, and corpora with the ids of a tokenizer file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import trellis
from trellis.corpus import arrow
from trellis.corpus.recipe import Recipe
from trellis.corpus.tokenize import DOCUMENT
from trellis.corpus.tokenizer_file import corpus_of_tokenizer, tokens_of_file
from trellis.errors import TrellisError

TEXTS = ["a b c", "b\na", "c"] * 10
TOKENS = {"model": {"vocab": {"a": 0, "Ġb": 1, "b": 3}}, "added_tokens": [{"content": "<|endoftext|>", "id": 4}]}


def tables(folder: Path) -> list[Path]:
    """The same rows in three formats."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, ipc, parquet

    ids = [[ord(word) for word in text.split()] for text in TEXTS]
    table = pyarrow.table({"text": TEXTS, "ids": ids})
    parquet.write_table(table, folder / "t.parquet")
    feather.write_feather(table, folder / "t.feather")
    with ipc.new_stream(str(folder / "t.arrow"), table.schema) as writer:
        writer.write_table(table)
    return [folder / f"t.{suffix}" for suffix in ("parquet", "feather", "arrow")]


def words(corpus: trellis.Corpus) -> list[str]:
    return [word for split in corpus.splits.values() for word in corpus.vocab.decode(split.tokens)]


def test_rows_are_sentences(tmp_path: Path) -> None:
    for path in tables(tmp_path):
        assert sorted(words(trellis.read_corpus(str(path)))) == sorted(words(trellis.read_corpus(TEXTS)))
        ids = words(trellis.read_corpus(str(path), column="ids"))
        assert sorted(set(ids)) == ["97", "98", "99", "<eos>"]
        assert ids.count("<eos>") == len(TEXTS)


def test_values_are_lines_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow: two batches with a column of texts and of lists."""
    rows, sizes = [["a\n b", None], [["x", 7], f"c{DOCUMENT}d"]], list[int]()
    found = [
        SimpleNamespace(schema=SimpleNamespace(names=["text"]), nbytes=size, column=lambda name, values=values:
                        SimpleNamespace(to_pylist=lambda: {"text": values}[name]))
        for size, values in zip((3, 5), rows, strict=True)
    ]  # fmt: skip
    monkeypatch.setattr(arrow, "batches", lambda path: found)
    pieces = list(arrow.read(tmp_path, Recipe("arrow"), sizes.append))
    assert pieces == [f"{DOCUMENT}a b\n{DOCUMENT}\n", f"{DOCUMENT}x 7\n{DOCUMENT}c d\n"]
    assert sizes == [3, 5]
    with pytest.raises(TrellisError, match="has no column 'story'; it has text"):
        list(arrow.read(tmp_path, Recipe("arrow", "story"), sizes.append))


def test_what_is_wrong_with_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(TrellisError, match="needs pyarrow"):
        trellis.read_corpus(str(tmp_path / "x.parquet"))
    monkeypatch.undo()
    path, *_ = tables(tmp_path)
    with pytest.raises(TrellisError, match="no column 'story'; it has text, ids"):
        trellis.read_corpus(str(path), column="story")
    for name in ("x.parquet", "x.arrow"):
        (tmp_path / name).write_text("text")
        with pytest.raises(TrellisError, match="as an Arrow table"):
            trellis.read_corpus(str(tmp_path / name))


def tokenizer_file(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(TOKENS), encoding="utf-8")
    return path


def test_ids_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    path, rows = tokenizer_file(tmp_path), [[0, 1], [3, 1, 0, 4], [0]]
    assert tokens_of_file(path) == ["a", "Ġb", "<unused 2>", "b", "<|endoftext|>"]
    corpus = corpus_of_tokenizer(rows * 10, path)
    assert corpus.vocab.words == ["a", "Ġb", "<unused 2>", "b", "<eos>"]
    assert corpus.vocab.counts == [30, 20, 0, 10, 30]
    train = corpus["train"]
    found = [train.tokens[i:j].tolist() for i, j in zip(train.sentences, train.sentences[1:], strict=False)]
    assert all(row in ([0, 1, 4], [3, 1, 0, 4], [0, 4]) for row in found)
    lengths = {2: len("a") + len("Ġb"), 3: len("b") + len("Ġb") + len("a"), 1: len("a")}
    assert train.num_characters == sum(1 + lengths[len(row) - 1] for row in found)
    model = trellis.train(corpus, states=2, epochs=1, device="cpu").model
    assert len(model.vocab) == 5


def test_a_tokenizer_without_tokens(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"model": {"vocab": {}}}))
    assert tokens_of_file(tmp_path / "t.json") == []
    with pytest.raises(TrellisError, match="has no token 'that ends a text'"):
        corpus_of_tokenizer([[0]], tmp_path / "t.json")


def test_texts_are_encoded_by_the_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "</s>": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    corpus = corpus_of_tokenizer(["a b", "b z"] * 20, tmp_path / "t.json")
    assert corpus.vocab.words == ["a", "b", "<eos>", "?"]
    assert corpus.vocab.counts == [20, 40, 40, 20]


def test_what_is_wrong_with_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tokenizer_file(tmp_path)
    for rows, sentence in (([[0, 5]], "the id 5"), ([[4, 0]], "the id 4")):
        with pytest.raises(TrellisError, match=sentence):
            corpus_of_tokenizer(rows, path)
    with pytest.raises(TrellisError, match="no token 'z'"):
        corpus_of_tokenizer([[0]], path, end="z")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TrellisError, match="needs the package tokenizers"):
        corpus_of_tokenizer(["a"], path)
    path.write_text("[]")
    with pytest.raises(TrellisError, match=r"not a tokenizer\.json"):
        corpus_of_tokenizer([[0]], path)
    with pytest.raises(TrellisError, match="Cannot read"):
        corpus_of_tokenizer([[0]], tmp_path / "none.json")
