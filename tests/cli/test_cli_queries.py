"""How text enters commands and how results leave them: readers, blank lines, ids, TSV, JSON lines, feature files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from running import SENTENCES, parsed, run
from trellis.cli import arguments
from trellis.cli.commands import embed
from trellis.errors import TrellisError
from trellis.storage import load_tensors, read_metadata

CLOSE = 1e-5
QUICK = ["--states", "3", "--set", "train.epochs=2", "--set", "data.min_count=1", "--device", "cpu"]


def proteins(number: int, seed: int = 0) -> dict[str, str]:
    draw = random.Random(seed)
    return {f"P{i:03}": "".join(draw.choices("ACDEFG", k=draw.randint(5, 30))) for i in range(number)}


def as_fasta(records: dict[str, str]) -> str:
    return "".join(f">{name} a protein\n{text[:9]}\n{text[9:]}\n" for name, text in records.items())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of proteins and one of words."""
    folder = tmp_path_factory.mktemp("queries")
    (folder / "train.fasta").write_text(as_fasta(proteins(60)))
    (folder / "words.txt").write_text("\n".join(SENTENCES * 12) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRELLIS_CACHE", str(folder / "cache"))
        for name, data in (("proteins", "train.fasta"), ("words", "words.txt")):
            assert run("train", "--data", folder / data, "--run", folder / name, "--quiet", *QUICK) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    assert run(*words, "--json", "--quiet") == 0
    return parsed(capsys.readouterr().out, *words)


def table(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, str]]:
    """The TSV that a command writes off a terminal."""
    capsys.readouterr()
    assert run(*words, "--quiet") == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out), dialect="excel-tab"))


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_records_are_independent_sequences(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The order of batches is the reader's, then the family's; what is given wins."""
    assert trellis.load(place / "proteins").about["order"] == "sentences"
    assert not trellis.load(place / "proteins").carry
    assert trellis.load(place / "words").about["order"] == "streams"
    assert 'order = "sentences"' in (place / "proteins" / "config.toml").read_text()
    caplog.set_level("INFO")
    fasta = str(place / "train.fasta")
    given = trellis.train(fasta, states=2, epochs=1, order="streams").model
    assert given.about["order"] == "streams"
    assert "batches.order" not in caplog.text
    corpus = trellis.read_corpus(fasta)
    assert trellis.train(corpus, family="lstm", dim=2, epochs=1).model.about["order"] == "sentences"
    noted = [message for message in caplog.messages if message.startswith("batches.order")]
    assert noted == ["batches.order = sentences: the records of a fasta file are independent sequences"]
    (tmp_path / "x.csv").write_text("user,event\n" + "u,a\nu,b\nv,a\n" * 20)
    chosen = trellis.train(tmp_path / "x.csv", family="bigram", column="user:event").model.about
    assert (chosen["order"], chosen["reader"], chosen["column"]) == ("sentences", "csv", "user:event")


def test_a_run_with_the_readers_order_resumes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--data", place / "train.fasta", "--run", place / "proteins", "--resume", "--quiet", *QUICK]
    assert run("train", *more, "--set", "train.epochs=3") == 0
    assert run("train", *more, "--set", "batches.order=streams") == 2
    assert "was trained with batches.order = 'sentences', not 'streams'" in capsys.readouterr().err


def test_proteins_are_scored_and_headers_are_not(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, model = proteins(9, seed=1) | {"empty": ""}, trellis.load(place / "proteins")
    expected = {name: model.log_prob(text) for name, text in queries.items()}
    give(monkeypatch, as_fasta(queries))
    by_pipe = answer(capsys, "score", place / "proteins")
    assert {row["id"]: row["log_prob"] for row in by_pipe} == pytest.approx(expected, abs=CLOSE)
    assert [row["text"] for row in by_pipe] == [*queries.values()]
    (tmp_path / "x.fa.gz").write_bytes(gzip.compress(as_fasta(queries).encode()))
    for model_name in ("proteins", "words"):  # the suffix decides before the model does
        rows = table(capsys, "score", place / model_name, "--input", tmp_path / "x.fa.gz")
        assert [row["id"] for row in rows] == [*queries]
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(queries.values()) + "\n")
    by_line = table(capsys, "score", place / "proteins", "-i", lines)
    assert [float(row["log_prob"]) for row in by_line] == pytest.approx([*expected.values()], abs=CLOSE)
    give(monkeypatch, lines.read_text())
    by_name = table(capsys, "score", place / "proteins", "--reader", "text")
    assert by_name == by_line
    assert "id" not in by_line[0]
    (tmp_path / "x.csv").write_text("id,seq\n" + "".join(f"{name},{text}\n" for name, text in queries.items()))
    rows = table(capsys, "score", place / "proteins", "-i", tmp_path / "x.csv", "--column", "seq")
    assert {row["id"]: float(row["log_prob"]) for row in rows} == pytest.approx(expected, abs=CLOSE)


def test_evaluation_reads_files_as_the_model_does(place: Path, tmp_path: Path) -> None:
    queries, model = proteins(9, seed=1), trellis.load(place / "proteins")
    (tmp_path / "x.seq").write_text(as_fasta(queries))
    (tmp_path / "x.txt").write_text("\n".join(queries.values()) + "\n")
    total = model.log_prob([*queries.values()]).sum()
    for data, reader in (("x.seq", None), ("x.txt", None), ("x.seq", "fasta")):
        found = trellis.evaluate(model, tmp_path / data, reader=reader)
        assert found.log_likelihood == pytest.approx(total, rel=CLOSE)
    with pytest.raises(TrellisError, match="did you mean 'fasta'"):
        trellis.evaluate(model, tmp_path / "x.seq", reader="fastq")


def test_pretokenized_text(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens are what spaces separate, whatever the tokenizer of the model."""
    model = trellis.load(place / "proteins")
    (row,) = answer(capsys, "score", place / "proteins", "--pretokenized", "AC D")
    assert row["log_prob"] == pytest.approx(model.log_prob([["AC", "D"]])[0], abs=CLOSE)
    rows = answer(capsys, "embed", place / "proteins", "--pretokenized", " AC  D")
    assert [(row["token"], row["start"], row["end"]) for row in rows] == [("AC", 1, 3), ("D", 5, 6)]
    rows = answer(capsys, "infill", place / "proteins", "--pretokenized", "A ___")
    assert len(rows[0]["gaps"]) == 1


def test_a_blank_line_is_an_empty_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lines = trellis.load(place / "words"), ["the cat sees", "", "  ", "a dog"]
    give(monkeypatch, "\n".join(lines) + "\n")
    rows = answer(capsys, "score", place / "words")
    assert [row["log_prob"] for row in rows] == pytest.approx(model.log_prob(lines).tolist(), abs=CLOSE)
    give(monkeypatch, "\n".join(lines))
    rows = answer(capsys, "embed", place / "words")
    assert [(row["sentence"], row["number"]) for row in rows] == [(1, 1), (1, 2), (1, 3), (4, 1), (4, 2)]
    give(monkeypatch, "the ___\n\na ___ runs\n")
    rows = answer(capsys, "infill", place / "words", "--samples", "2")
    assert [len(row["gaps"]) for row in rows] == [1, 0, 1]
    assert rows[1]["samples"] == ["", ""]
    give(monkeypatch, "the ___\n\n\nthe dog\n")
    assert run("infill", place / "words") == 2
    assert "Line 4 has no gap" in capsys.readouterr().err


@pytest.mark.parametrize("most", [1, 7, 1 << 17])
def test_chunks_do_not_matter(
    most: int, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments.chunks_of, "__defaults__", (most, None))
    monkeypatch.setattr(embed, "TOKENS", most)
    lines = [*SENTENCES, "", "the dog"]
    give(monkeypatch, "\n".join(lines))
    model = trellis.load(place / "words")
    rows = table(capsys, "score", place / "words")
    assert [float(row["log_prob"]) for row in rows] == pytest.approx(model.log_prob(lines).tolist(), abs=CLOSE)
    assert [row["text"] for row in rows] == lines
    rows = table(capsys, "embed", place / "words", *lines)
    assert [row["token"] for row in rows] == [word for line in lines for word in line.split()]


def test_a_word_that_is_not_in_the_vocabulary_is_located(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trellis.train(SENTENCES * 9, family="bigram", unk=False).model.save(tmp_path / "m")
    give(monkeypatch, "the dog\n\nthe zebra\n")
    assert run("score", tmp_path / "m") == 2
    assert "Line 3: The word 'zebra'" in capsys.readouterr().err


def test_every_file_of_features_has_the_same_rows(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["the cat  sees", "", "a dog"]
    vectors = np.concatenate(trellis.load(place / "words").embed(lines))
    words = ["the", "cat", "sees", "a", "dog"]
    for suffix in ("jsonl", "tsv", "csv", "npy", "vec", "safetensors"):
        path = tmp_path / f"x.{suffix}"
        facts = answer(capsys, "embed", place / "words", *lines, "-o", path, "--device", "cpu")
        assert (facts["tokens"], facts["dimensions"]) == (5, 3)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), vectors)
    np.testing.assert_array_equal(load_tensors(tmp_path / "x.safetensors")["vectors"], vectors)
    assert read_metadata(tmp_path / "x.safetensors")["tokens"].split("\n") == words
    first, *rest = (tmp_path / "x.vec").read_text().splitlines()
    assert (first, [line.split()[0] for line in rest]) == ("5 3", words)
    places = [(1, 1, 0, 3), (1, 2, 4, 7), (1, 3, 9, 13), (3, 1, 0, 1), (3, 2, 2, 5)]
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [(row["sentence"], row["number"], row["start"], row["end"]) for row in rows] == places
    np.testing.assert_array_equal(np.array([row["vector"] for row in rows], np.float32), vectors)
    for name, dialect in (("x.tsv", "excel-tab"), ("x.csv", "excel"), ("x.tokens.tsv", "excel-tab")):
        rows = list(csv.DictReader(io.StringIO((tmp_path / name).read_text()), dialect=dialect))
        assert [row["token"] for row in rows] == words
        if "tokens" not in name:
            found = [[float(row[f"v{i}"]) for i in range(3)] for row in rows]
            np.testing.assert_allclose(found, vectors, rtol=1e-6)
    assert run("embed", place / "words", "a dog", "--top", "2", "-o", tmp_path / "top.csv", "--quiet") == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "top.csv").read_text())))
    assert [(row["token"], row["rank"]) for row in rows] == [("a", "1"), ("a", "2"), ("dog", "1"), ("dog", "2")]


def test_parquet(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        assert run("embed", place / "words", "a dog", "-o", tmp_path / "x.parquet") == 2
        assert "Parquet needs pyarrow" in capsys.readouterr().err
        assert not (tmp_path / "x.parquet").exists()
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert run("embed", place / "words", "a dog", "", "the", "-o", tmp_path / "x.parquet") == 0
    found = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    model = trellis.load(place / "words")
    assert [row["token"] for row in found] == ["a", "dog", "the"]
    vectors = np.concatenate(model.embed(["a dog", "the"]))
    np.testing.assert_allclose([row["vector"] for row in found], vectors, rtol=CLOSE)


def test_a_terminal_shows_tables(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for command, text, shown in (
        ("score", "the cat", "log p"),
        ("embed", "the cat", "state"),
        ("infill", "a ___", "gap"),
    ):
        assert run(command, place / "words", text, "--quiet") == 0
        out = capsys.readouterr().out
        assert shown in out
        assert "\t" not in out


def test_a_folder_with_a_file_for_each_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """train, valid and test, of any format, plain or packed; other files are not read."""
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.fasta").write_text(as_fasta(proteins(30)))
    (folder / "valid.fasta").write_text(as_fasta(proteins(4, seed=1)))
    (folder / "test.fasta.gz").write_bytes(gzip.compress(as_fasta(proteins(5, seed=2)).encode()))
    (folder / "notes.md").write_text("not a protein")
    trained = trellis.train(folder, states=2, epochs=1, run=tmp_path / "run")
    corpus = trellis.read_corpus(folder)
    assert [len(corpus[name].sentences) - 1 for name in ("train", "valid", "test")] == [30, 4, 5]
    assert trained.model.about["order"] == "sentences"
    assert trellis.load(tmp_path / "run").about["reader"] == "fasta"
    expected = trained.model.log_prob([*proteins(5, seed=2).values()]).sum()
    assert trellis.evaluate(trained.model).log_likelihood == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize("lines", ["\n\n", "\n"])
def test_files_of_features_without_tokens(
    lines: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blank lines give files with no rows, but with the columns and sizes of others."""
    for suffix in ("jsonl", "tsv", "csv", "npy", "vec", "safetensors"):
        give(monkeypatch, lines)
        facts = answer(capsys, "embed", place / "words", "-o", tmp_path / f"x.{suffix}", "--device", "cpu")
        assert facts["tokens"] == 0
        assert suffix == "jsonl" or facts["dimensions"] == 3
    columns = ["sentence", "number", "token", "start", "end"]
    assert (tmp_path / "x.tsv").read_text() == "\t".join([*columns, "v0", "v1", "v2"]) + "\n"
    assert (tmp_path / "x.csv").read_text() == ",".join([*columns, "v0", "v1", "v2"]) + "\n"
    assert (tmp_path / "x.tokens.tsv").read_text() == "\t".join(columns) + "\n"
    assert np.load(tmp_path / "x.npy").shape == (0, 3)
    assert load_tensors(tmp_path / "x.safetensors")["vectors"].shape == (0, 3)
    assert (tmp_path / "x.vec").read_text() == "0 3\n"
    give(monkeypatch, lines)
    answer(capsys, "embed", place / "words", "-o", tmp_path / "top.tsv", "--top", "2")
    assert (tmp_path / "top.tsv").read_text() == "\t".join([*columns, "rank", "state", "probability"]) + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reader", "csv"], "A CSV source needs --column"),
        (["--reader", "fast"], "--reader is 'fast', which is not recognised; did you mean 'fasta'?"),
        (["-i", "x.csv"], "A CSV source needs --column"),
    ],
)
def test_messages_name_the_flags(
    words: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("score", place / "words", *words) == 2
    assert message in capsys.readouterr().err
