"""A family in one folder outside the package, found by its entry point, through the whole command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TEXT = "the cat sees the dog\n" * 30 + "stocks fell and bonds rose\n" * 30


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and the metadata of an installed distribution that has the family."""
    folder = tmp_path_factory.mktemp("outside")
    info = folder / "mixture_family-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mixture-family\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[trellis.families]\nmixture = mixture_family:FAMILY\n")
    (folder / "text.txt").write_text(TEXT)
    return folder


def trellis(place: Path, *words: object, code: int = 0) -> str:
    """What a command prints, in a process that sees the distribution."""
    paths = [str(HERE), str(place), *(path for path in sys.path if path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TRELLIS_CACHE": str(place / "cache")}
    command = [sys.executable, "-m", "trellis", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == code, ended.stderr
    return ended.stderr if code else ended.stdout


def test_a_family_is_configured_trained_evaluated_saved_loaded_and_reported(place: Path) -> None:
    options = trellis(place, "config", "mixture")
    assert 'family = "mixture"' in options
    assert "# unigram models that are mixed; at least 1" in options
    run = place / "run"
    small = ["--data", place / "text.txt", "--run", run, "--set", "model.components=2", "--set", "train.lr=0.3"]
    answer = json.loads(trellis(place, "train", "--model", "mixture", *small, "--json", "--quiet"))
    unigram, *_, mixture = answer["scores"]["rows"]
    assert mixture["model"] == "mixture"
    assert mixture["test"] < unigram["test"]  # sentences of two kinds, which one unigram mixes
    (row,) = json.loads(trellis(place, "eval", run, "--json"))
    assert row["perplexity"] == pytest.approx(mixture["test"])
    assert json.loads(trellis(place, "info", run, "--json"))["components"] == 2
    assert len(json.loads(trellis(place, "sample", run, "-n", 2, "--json"))) == 2
    report = (run / "report.html").read_text()
    assert "Mixture of unigrams" in report
    assert "Components" in report


def test_its_options_are_checked_before_anything_is_read(place: Path) -> None:
    for setting, message in {
        "model.components=0": "model.components is 0: it must be at least 1",
        "model.smoothing=fat": "did you mean 'flat'",
        "model.states=4": "Unknown key 'model.states' of the family mixture",
        "train.learner=em": "train.learner of the family mixture is 'em'",
    }.items():
        words = ["train", "--model", "mixture", "--data", "nowhere", "--set", setting]
        assert message in trellis(place, *words, code=2)


def test_an_unknown_family_names_the_nearest(place: Path) -> None:
    assert "did you mean 'mixture'" in trellis(place, "config", "mixtures", code=2)


def test_a_family_that_cannot_be_imported_is_one_sentence(place: Path) -> None:
    entry = place / "mixture_family-0.1.dist-info" / "entry_points.txt"
    before = entry.read_text()
    entry.write_text(before + "gone = no_such_package:FAMILY\nwrong = mixture_family.config:MixtureConfig\n")
    try:
        assert "Cannot import 'no_such_package:FAMILY'" in trellis(place, "config", "gone", code=2)
        assert "which is not a Family" in trellis(place, "config", "wrong", code=2)
    finally:
        entry.write_text(before)
