"""Wherever a named set of tagged text is accepted, so is a file of one's own, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trellis
from running import run
from trellis.corpus.tagged import read_tagged

SENTENCES = [["the_D", "dog_N", "barks_V"], ["Fido_N", "sees_V", "the_D", "cat_N"], ["the_D", "cat_N", "sees_V"]] * 12
ROWS = [[token.split("_") for token in sentence] for sentence in SENTENCES]


def columns(separator: str) -> str:
    return "\n\n".join("\n".join(separator.join(token) for token in row) for row in ROWS) + "\n"


def conllu() -> str:
    lines = ["\n".join(f"{i}\t{w}\t_\t{t}\t_\t_\t_\t_\t_\t_" for i, (w, t) in enumerate(row, 1)) for row in ROWS]
    return "\n\n".join(f"# sent_id = {i}\n{line}" for i, line in enumerate(lines)) + "\n"


FILES = {  # name: format, text
    "own.conll": ("conll", columns(" ")),
    "own.tsv": ("conll", columns("\t")),
    "own.conllu": ("conllu", conllu()),
    "own.medpost": ("medpost", "".join(f"P{i}\n{' '.join(s)}\n" for i, s in enumerate(SENTENCES))),
    "own.txt": ("word_tag", "".join(" ".join(sentence) + "\n" for sentence in SENTENCES)),
}
FITTING = {
    "crf": [],
    "hmm": ["--set", "train.epochs=3", "--set", "data.valid_fraction=0.2", "--set", "data.test_fraction=0.2"],
}


@pytest.fixture(params=FILES)
def own(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    """A file and the options that say how to read it."""
    format, text = FILES[request.param]
    (tmp_path / request.param).write_text(text)
    return tmp_path / request.param, ["--format", format]


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    assert run("tag", *words, "--json", "--quiet") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("model", FITTING)
def test_training_evaluation_and_tagging(
    model: str, own: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, options = own
    facts = answer(capsys, "train", "--model", model, "--data", path, *options, "--run", tmp_path / "run",
                   *FITTING[model])  # fmt: skip
    assert (facts["kind"], facts["tags"]) == (model, 3)
    (scores,) = answer(capsys, "eval", tmp_path / "run", "--data", path, *options)
    assert scores["accuracy"] == 1.0
    assert answer(capsys, "apply", tmp_path / "run", "Fido barks")["tags"] == ["N", "V"]
    reader = options[-1]
    assert trellis.evaluate(tmp_path / "run", path, reader=reader).accuracy == 1.0
    assert trellis.evaluate(tmp_path / "run", path).accuracy == 1.0  # as the training text


@pytest.mark.parametrize("family", ["crf", "hmm-tagger"])
def test_training_as_any_other_model(family: str, own: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, (_, reader) = own
    held_out = "--set", "data.valid_fraction=0.2", "--set", "data.test_fraction=0.2"
    short = ["--set", "train.epochs=3"] if family == "hmm-tagger" else []
    assert run("train", "--model", family, "--data", path, "--set", f"data.reader={reader}", *held_out, *short,
               "--run", tmp_path / "run", "--quiet") == 0  # fmt: skip
    assert trellis.evaluate(tmp_path / "run").accuracy == 1.0


def test_the_suffix_of_conllu_files_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("own.conllu", "own.tsv"):
        (tmp_path / name).write_text(FILES[name][1])
        answer(capsys, "train", "--data", tmp_path / name, "--run", tmp_path / f"{name}.run")
    assert read_tagged(tmp_path / "own.conllu") == read_tagged(tmp_path / "own.tsv")
    for tagger in ("own.conllu.run", "own.tsv.run"):
        for name in ("own.conllu", "own.tsv"):
            (scores,) = answer(capsys, "eval", tmp_path / tagger, "--data", tmp_path / name)
            assert scores["accuracy"] == 1.0
        assert trellis.evaluate(tmp_path / tagger, tmp_path / "own.conllu").accuracy == 1.0


def test_a_tagger_of_an_own_file_is_evaluated_on_a_named_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ud_ewt").mkdir()
    for name in ("own.conllu", "ud_ewt/en_ewt-ud-train.conllu", "ud_ewt/en_ewt-ud-dev.conllu",
                 "ud_ewt/en_ewt-ud-test.conllu"):  # fmt: skip
        (tmp_path / name).write_text(conllu())
    monkeypatch.setenv("TRELLIS_DATA", str(tmp_path))
    options = ["--format", "conllu", "--run", tmp_path / "run", "--quiet"]
    assert run("tag", "train", "--data", tmp_path / "own.conllu", *options) == 0
    assert trellis.evaluate(tmp_path / "run", "ud_ewt").accuracy == 1.0
