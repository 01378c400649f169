"""trellis tag train | eval | apply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from running import run

TRAIN = "the D\ndog N\nsees V\nFido N\n\nFido N\nbarks V\n\nthe D\ncat N\nbarks V\n"
TEST = "the D\nbird N\nbarks V\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.conll").write_text(TRAIN)
    (tmp_path / "test.conll").write_text(TEST)
    assert run("tag", "train", "--data", tmp_path / "train.conll", "--run", tmp_path / "one", "--set", "crf.l2=0.01",
               "--quiet") == 0  # fmt: skip
    return tmp_path


def test_from_labelled_text_to_tags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("tag", "eval", folder / "one", "--data", folder / "test.conll", "--json") == 0
    (scores,) = json.loads(capsys.readouterr().out)
    assert (scores["accuracy"], scores["units"], scores["buckets"]["oov"]["gold"]) == (1.0, "tokens", 1)
    assert run("tag", "apply", folder / "one", "the dog barks") == 0
    assert capsys.readouterr().out == "the_D dog_N barks_V\n"


def test_two_taggers_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tag", "train", "--data", folder / "train.conll", "--run", folder / "two", "--template", "huang",
               "--set", "crf.l2=0.01", "--quiet") == 0  # fmt: skip
    capsys.readouterr()
    data = "--data", folder / "test.conll"
    assert run("tag", "eval", folder / "one", folder / "two", *data) == 0
    assert "p (exact binomial)" in capsys.readouterr().out
    assert run("tag", "eval", folder / "one", folder / "two", *data, "--json") == 0
    assert "p_value" in json.loads(capsys.readouterr().out)[1]["beside_first"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "{}/one", "--data", "{}/chunks"], "Is it a tagger for another task?"),
        (["eval", "{}/one", "--data", "{}/broken"], "broken, line 2: 1 columns where 2 are needed"),
        (["eval", "{}/nowhere", "--data", "{}/test.conll"], "There is no tagger"),
        (["eval", "{}/one", "--data", "{}/nothing"], "Cannot read"),
        (["apply", "{}/one", "the dog", ""], "Sentence 2 is empty"),
        (["apply", "{}/one", "the dog", "--pos"], "every token is a word, an underscore"),
        (["train", "--data", "{}/train.conll", "--run", "{}/one"], "already holds a tagger"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--set", "l3=1"], "Unknown key 'l3'"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--with", "brown:{}/no"], "Cannot read"),
        (["train", "--data", "ud_ewt", "--run", "{}/x", "--model", "hmm", "--template", "pos"], "takes no template"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (folder / "chunks").write_text("a B-NP\nb O\n")
    (folder / "broken").write_text("a D\nb\n")
    assert run("tag", *(word.format(folder) for word in words)) == 2
    told = capsys.readouterr().err.strip().split("\n")[-1]
    assert told.startswith("trellis: ")
    assert message in told
