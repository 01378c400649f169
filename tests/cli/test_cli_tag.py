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
    assert run("tag", "train", "--data", tmp_path / "train.conll", "--run", tmp_path / "one", "--set", "train.l2=0.01",
               "--quiet") == 0  # fmt: skip
    return tmp_path


def test_from_labelled_text_to_tags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("tag", "eval", folder / "one", "--data", folder / "test.conll", "--json") == 0
    (scores,) = json.loads(capsys.readouterr().out)
    assert (scores["accuracy"], scores["units"], scores["buckets"]["oov"]["gold"]) == (1.0, "tokens", 1)
    assert run("tag", "apply", folder / "one", "the dog barks") == 0
    assert capsys.readouterr().out == "the_D dog_N barks_V\n"


def test_options_may_come_before_sentences(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("tag", "apply", folder / "one", "--json", "the dog", "Fido barks") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(len(row["words"]), len(row["tags"])) for row in rows] == [(2, 2), (2, 2)]
    assert run("tag", "apply", folder / "one", "--pos", "the_D dog_N") == 0
    assert capsys.readouterr().out == "the_D dog_N\n"
    assert run("tag", "apply", folder / "one", "the dog", "--jsn") == 2
    assert "unrecognized arguments: --jsn" in capsys.readouterr().err


def test_a_second_column_that_is_not_looked_at_is_not_asked_for(folder: Path) -> None:
    """The template of parts of speech takes a lemma for nothing."""
    (folder / "lemmas").write_text("dogs dog N\nbark bark V\n")
    assert run("tag", "train", "--data", folder / "lemmas", "--run", folder / "pos", "--quiet") == 0
    assert run("tag", "apply", folder / "pos", "dogs bark") == 0


def test_an_empty_bucket_has_no_score(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("tag", "eval", folder / "one", "--data", folder / "train.conll") == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["oov"]]
    assert row == ["oov", "0", "-", "-", "-"]


def test_two_taggers_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tag", "train", "--data", folder / "train.conll", "--run", folder / "two", "--template", "huang",
               "--set", "train.l2=0.01", "--quiet") == 0  # fmt: skip
    capsys.readouterr()
    data = "--data", folder / "test.conll"
    assert run("tag", "eval", folder / "one", folder / "two", *data) == 0
    assert "p (exact binomial)" in capsys.readouterr().out
    assert run("tag", "eval", folder / "one", folder / "two", *data, "--json") == 0
    assert "p_value" in json.loads(capsys.readouterr().out)[1]["beside_first"]


def test_an_unknown_tag_is_an_error_of_the_tagger(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "more").write_text("the D\nb X\n")
    capsys.readouterr()
    assert run("tag", "eval", folder / "one", "--data", folder / "more", "--json") == 0
    assert "no tags X: they count as errors" in caplog.text
    assert json.loads(capsys.readouterr().out)[0]["accuracy"] <= 0.5


def test_training_reports_the_accuracy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("tag", "train", "--data", folder / "train.conll", "--run", folder / "rated", "--json", "--quiet") == 0
    assert 50 < json.loads(capsys.readouterr().out)["train accuracy, %"] <= 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "{}/one", "--data", "{}/chunks"], "one has none of the tags of the data; it has D, N, V"),
        (["eval", "{}/spans", "--data", "{}/names"], "spans has none of the tags of the data; it has NP."),
        (["eval", "{}/spans", "--data", "{}/chunks"], "trained with parts of speech, but the data has none"),
        (["eval", "{}/spans", "--data", "{}/universal"], "none of the parts of speech of the data (NOUN); it has"),
        (["eval", "{}/one", "--data", "{}/u.conllu", "--format", "conllu"], "line 1: empty word or upos"),
        (["eval", "{}/one", "--data", "{}/train.conll", "--column", "x"], "The column 'x' is not an integer"),
        (["eval", "{}/one", "--data", "{}/broken"], "broken, line 2: 1 columns, expected at least 2"),
        (["eval", "{}/nowhere", "--data", "{}/test.conll"], "There is no model"),
        (["eval", "{}/one", "--data", "{}/nothing"], "Cannot read"),
        (["apply", "{}/one", "the dog", "--pos"], "every token must be word_POS"),
        (["train", "--data", "{}/train.conll", "--run", "{}/one"], "already contains a tagger"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--set", "train.l2=-1"], "train.l2 is -1.0: it must"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--set", "model.scheme=IOB7"], "scheme is 'IOB7'"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--with", "vectors:{}/broken"], "line 1: expected"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--with", "vectors:{}/vectors"], "line 3: expected"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--model", "hmm"], "has no valid split"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--set", "l3=1"], "Unknown key 'l3'"),
        (["train", "--data", "{}/train.conll", "--run", "{}/x", "--with", "brown:{}/no"], "Cannot read"),
        (["train", "--data", "ud_ewt", "--run", "{}/x", "--model", "hmm", "--template", "pos"], "'model.template'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (folder / "chunks").write_text("a B-NP\nb O\n")
    (folder / "broken").write_text("a D\nb\n")
    (folder / "more").write_text("a D\nb X\n")
    (folder / "names").write_text("Fido N B-PER\nbarks V O\n")
    (folder / "universal").write_text("Fido NOUN B-NP\nFido NOUN O\n")
    (folder / "u.conllu").write_text("1\tdog\tdog\t\tN\t_\t_\t_\t_\t_\n")
    (folder / "vectors").write_text("2 2\na 1 0\nb 1 zero\n")
    if words[1] == "{}/spans":
        (folder / "phrases").write_text("Fido N B-NP\nbarks V O\n")
        assert run("tag", "train", "--data", folder / "phrases", "--run", folder / "spans", "--quiet") == 0
    assert run("tag", *(word.format(folder) for word in words)) == 2
    told = capsys.readouterr().err.strip().split("\n")[-1]
    assert told.startswith("trellis: ")
    assert message in told


@pytest.mark.parametrize("separator", ["\t", " "])
def test_words_are_split_as_in_training(separator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A no-break space is part of a word, in both places."""
    sum_ = "100\xa0000"
    text = f"pay V\n{sum_} N\n\n".replace(" ", separator)
    (tmp_path / "train.conll").write_text(text * 4)
    assert run("tag", "train", "--data", tmp_path / "train.conll", "--run", tmp_path / "one", "--quiet") == 0
    assert run("tag", "eval", tmp_path / "one", "--data", tmp_path / "train.conll", "--quiet") == 0
    capsys.readouterr()
    assert run("tag", "apply", tmp_path / "one", f"pay {sum_}") == 0
    assert capsys.readouterr().out == f"pay_V {sum_}_N\n"
