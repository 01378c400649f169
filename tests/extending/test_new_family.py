"""A family in one folder outside the package, found by its entry point, through the whole command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mixture_family import FAMILY
from outside import new_process, trellis

from trellis.testing import check_family


def test_a_family_is_configured_trained_evaluated_saved_loaded_and_reported(place: Path) -> None:
    options = new_process(place, "config", "mixture")
    assert 'family = "mixture"' in options
    assert "# number of components\n# allowed: at least 1\n" in options
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


def test_conformance() -> None:
    check_family(FAMILY, components=2)


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
    entry = place / "recipes-0.1.dist-info" / "entry_points.txt"
    before = entry.read_text()
    wrong = "gone = no_such_package:FAMILY\nwrong = mixture_family.config:MixtureConfig\n"
    entry.write_text(before.replace("[trellis.families]\n", f"[trellis.families]\n{wrong}"))
    try:
        assert "Cannot import 'no_such_package:FAMILY'" in trellis(place, "config", "gone", code=2)
        assert "which is not a Family" in trellis(place, "config", "wrong", code=2)
    finally:
        entry.write_text(before)
