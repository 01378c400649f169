"""`trellis train`: what it leaves behind, resumes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trellis
from running import SMALL, answer, run


def test_train_leaves_model_metrics_results_and_report(model: Path) -> None:
    names = {"model.safetensors", "metrics.jsonl", "results.json", "report.html", "config.toml", "best.safetensors"}
    assert names <= {path.name for path in model.iterdir()}
    rows = json.loads((model / "results.json").read_text())["scores"]["rows"]
    assert [row["model"] for row in rows] == ["unigram", "bigram", "5-gram", "hmm + 5-gram", "hmm"]
    assert all(1 < row[split] < 100 for row in rows for split in ("valid", "test"))
    assert [row["train"] is None for row in rows] == [False, False, False, True, False]
    assert all(0 < row["bits_per_character"] < 8 for row in rows)
    assert "5-gram" in (model / "report.html").read_text()


def test_train_leaves_the_test_split_alone(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid"):  # no test split at all
        (folder / f"{split}.txt").write_text(text.read_text())
    common = ["train", "--model", "bigram", "--data", folder, "--run", tmp_path / "run"]
    assert run(*common, "--quiet") == 2
    assert "no test split" in capsys.readouterr().err
    found = answer(capsys, *common, "--no-test", "--set", "eval.ngram=3")
    assert [row["model"] for row in found["scores"]["rows"]] == ["unigram", "3-gram", "bigram"]
    assert "test" not in found["scores"]["values"]
    assert found["scores"]["headline"] == "valid"
    assert "test" not in trellis.load(tmp_path / "run").about["scores"]


def test_train_with_a_teacher(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    words = ["train", "--data", text, "--run", tmp_path / "taught", *SMALL, "--teacher", model]
    found = answer(capsys, *words, "--set", "train.teacher_tokens=500")
    assert found["scores"]["rows"][-1]["model"] == "hmm taught by hmm"
    assert len(list((tmp_path / "cache" / "samples").iterdir())) == 1


@pytest.mark.parametrize("family", ["feedforward", "lstm", "rnn"])
def test_networks_train_and_answer(family: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, small = tmp_path / family, ["--set", "model.dim=4", "--set", "train.epochs=1"]
    common = ["train", "--model", family, "--data", text, "--run", folder, "--quiet", *small]
    assert run(*common, "--set", "train.learner=em") == 2
    assert f"train.learner of the family {family} is 'em', which is not recognised" in capsys.readouterr().err
    assert run(*common) == 0
    capsys.readouterr()
    trained = json.loads((folder / "results.json").read_text())["scores"]["rows"][-1]
    (row,) = answer(capsys, "eval", folder)
    assert row["perplexity"] == pytest.approx(trained["test"], rel=1e-5)
    assert answer(capsys, "info", folder)["dim"] == 4
    assert len(answer(capsys, "sample", folder, "-n", "2")) == 2
    (scored,) = answer(capsys, "score", folder, "the cat")
    assert scored["log_prob"] == pytest.approx(trellis.load(folder).log_prob("the cat"))
    assert run("states", folder) == 2
    assert "no hidden states" in capsys.readouterr().err


def test_resuming_another_model_names_what_differs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--run", model, "--resume", "--states", "9", "--quiet") == 2
    assert "was trained with model.states = 4, not 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ["--states", "9"],
        ["--model", "ngram"],
        ["--resume", "--states", "9"],
        ["--resume", "--set", "train.learner=gradient"],
    ],
)
def test_a_refused_training_changes_nothing(
    option: list[str], model: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    common = ["train", "--data", trained / "text.txt", "--run", model, "--quiet"]
    assert run(*common, *(SMALL if "ngram" not in option else []), *option) == 2
    assert "choose another folder" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_a_training_that_failed_at_once_does_not_block_its_folder(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["train", "--data", text, "--run", tmp_path / "r", "--quiet", *SMALL]
    assert run(*common, "--set", "train.learner=adam") == 2
    assert run(*common) == 0


def test_resuming_may_train_for_longer(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--run", model, "--resume", "--set", "train.epochs=5", "--quiet") == 0
    assert json.loads((model / "results.json").read_text())["training"]["epoch"] == 5


def test_unknown_words_without_unk(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--data", text, "--run", tmp_path / "r", "--set", "data.unk=false", "--quiet", *SMALL) == 0
    assert run("score", tmp_path / "r", "the zebra") == 2
    assert "zebra" in capsys.readouterr().err


def test_the_column_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,text\n" + "".join(f"{i},a b\n" for i in range(40)))
    options = "--states", "2", "--set", "train.epochs=1", "--run", tmp_path / "run", "--quiet"
    assert run("train", "--data", tmp_path / "t.csv", "--column", "text", *options) == 0
    assert 'column = "text"' in (tmp_path / "run" / "config.toml").read_text()
