"""An HMM tagger on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from running import run
from taggers import CONFIG, tagger, texts
from trellis.families.hmm_tagger import fit
from trellis.options import to_toml
from trellis.training import run as job


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fit, "read", lambda config, data: texts())
    path = tmp_path / "run.toml"
    path.write_text(to_toml(CONFIG))
    return path


def test_training_tells_how_good_the_tags_are(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", config, "--run", tmp_path / "first", "--quiet") == 0
    assert "out of vocabulary" in capsys.readouterr().out
    assert run("train", config, "--run", tmp_path / "second", "--quiet", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["scores"]["values"]["test_accuracy"] == 100.0
    assert run("info", tmp_path / "first", "--json") == 0
    assert json.loads(capsys.readouterr().out)["scores"] == answer["scores"]["values"]


def test_a_tagger_is_a_language_model_too(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", config, "--run", tmp_path / "run", "--quiet") == 0
    capsys.readouterr()
    assert run("infill", tmp_path / "run", "the ___ sees the cat", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"].startswith("the ")


def test_an_interrupted_training_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        job, "train", lambda config, folder, **_: job.Trained(tagger(), None, training={"outcome": "interrupted"})
    )
    assert run("tag", "train", "--model", "hmm", "--data", "ud_ewt", "--run", tmp_path / "x") == 130
    assert "trellis train --run" in " ".join(capsys.readouterr().out.split())
