"""What new users do by mistake gets one sentence, and text leaves a pipe as it came."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trellis
from running import run
from trellis.cli.console import Lines, write_rows
from trellis.errors import TrellisError

QUICK = ["--states", "3", "--set", "train.epochs=1", "--set", "data.min_count=1", "--device", "cpu"]
LINES = "the cat sees the dog\na dog sees a cat\nthe dog runs\n" * 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("misuse")
    (folder / "text.txt").write_text(LINES)
    assert run("train", "--data", folder / "text.txt", "--run", folder / "run", *QUICK, "--quiet") == 0
    return folder / "run"


def test_nothing_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--run", tmp_path / "typo", "--resume") == 2
    assert "There is no run in" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


def test_a_fasta_file_without_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.fasta").write_text("\nMKV\n>a\nMKV\n")
    assert run("train", "--data", tmp_path / "x.fasta", "--run", tmp_path / "run", *QUICK) == 2
    assert "is not FASTA" in capsys.readouterr().err


def test_an_unclosed_quote(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('user,event\nu1,a\nu1,"b\n' + "u2,c\n" * 20)
    with pytest.raises(TrellisError, match="not a readable CSV file"):
        trellis.read_corpus(tmp_path / "x.csv", column="user:event")


def test_a_folder_of_two_formats(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINES)
    (tmp_path / "b.fasta").write_text(">a\nMKV\n")
    with pytest.raises(TrellisError, match="keep one format"):
        trellis.read_corpus(tmp_path)


def test_carriage_returns_are_quoted() -> None:
    file = io.StringIO()
    write_rows(file, [{"text": "nine\rten", "n": 1}, {"text": "a\tb", "n": 2}], heading=True)
    assert "\r\n" not in file.getvalue()
    rows = list(csv.reader(io.StringIO(file.getvalue(), newline=""), "excel-tab"))
    assert rows == [["text", "n"], ["nine\rten", "1"], ["a\tb", "2"]]


def test_a_pipe_gets_every_character(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    word = "e\u00adf\u200d"
    Lines([word]).show()
    assert capsys.readouterr().out == f"{word}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Lines([word]).show()
    assert capsys.readouterr().out == "e\\xadf\\u200d\n"


def test_word2vec_files_hold_no_blanks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trellis.train(LINES.splitlines(), states=2, epochs=1, tokenizer="characters").model.save(tmp_path / "model")
    assert run("embed", tmp_path / "model", "a b", "-o", tmp_path / "x.vec") == 2
    assert "cannot hold the token ' '" in capsys.readouterr().err
    assert not (tmp_path / "x.vec").exists()


def test_states_of_a_model_without_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = trellis.LDSVectors(2).fit(LINES.splitlines())
    vectors.model_.save(tmp_path)
    assert run("embed", tmp_path, "the cat", "--top", "2") == 2
    assert "no most probable states" in capsys.readouterr().err


def test_a_picture_of_two_sentences(model: Path) -> None:
    loaded = trellis.load(model)
    for wrong in (["a", "b"], []):
        with pytest.raises(TrellisError, match="Pass one sentence"):
            loaded.draw(wrong)
    assert loaded.draw(["the cat"]).words[:2] == ["the", "cat"]


def test_vectors_of_strings_and_tokens() -> None:
    from sklearn.base import clone

    text = LINES.splitlines()
    estimator = clone(trellis.LDSVectors(2)).fit([line.split() for line in text])
    np.testing.assert_array_equal(estimator.transform(text[:1])[0], trellis.LDSVectors(2).fit(text).transform(text)[0])
    for wrong in ("the cat", 5, [1, 2]):
        with pytest.raises(TrellisError):
            trellis.LDSVectors(2).fit(wrong)
    with pytest.raises(TrellisError, match="not a text"):
        estimator.transform("the cat")


def test_a_dash_is_standard_input(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n")))
    assert run("score", model, "-i", "-", "--device", "cpu") == 0
    assert "the cat" in capsys.readouterr().out


def test_an_output_that_cannot_hold_the_text(model: Path) -> None:
    command = [sys.executable, "-m", "trellis", "score", str(model), "the ☃", "--device", "cpu", "--quiet"]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "the \\u2603" in found.stdout
    assert not found.stderr


@pytest.mark.parametrize("dialect", ["excel", "excel-tab"])
def test_tables_execute_nothing_in_a_spreadsheet(dialect: str) -> None:
    formulas = ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=a", " =a", "-lrb-", "=\nx", "＝1+1"]
    harmless = ["-", "--", "=", "-3", "+4.5", "-3e-4", "a=b", "the", "", "@"]
    file = io.StringIO(newline="")
    write_rows(file, [{"text": text, "n": -1.5} for text in formulas + harmless], True, dialect)
    rows = list(csv.reader(io.StringIO(file.getvalue(), newline=""), dialect))[1:]
    assert rows == [[f"'{text}", "-1.5"] for text in formulas] + [[text, "-1.5"] for text in harmless]
