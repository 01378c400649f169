"""A parameterisation from outside in two files: sticky_params.py and sticky_options.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from outside import trellis
from sticky_params import StickyParams

import trellis as library
from corpora import STATES, SUPPORTS, WORDS
from trellis.errors import TrellisError
from trellis.testing import check_family, check_parameters


@pytest.mark.parametrize("support", SUPPORTS)
def test_conformance(support: str) -> None:
    check_parameters(StickyParams(STATES, len(WORDS), SUPPORTS[support]))


def test_the_family_with_it(installed: Path) -> None:
    check_family("hmm", states=4, params="sticky", learner="gradient")


def test_options_reach_the_parameters(installed: Path) -> None:
    settings = {"states": 4, "params": "sticky", "learner": "gradient", "lr": 0.0, "epochs": 1}
    model = library.train(["a b", "b a"] * 20, params_options="stay=0.9", **settings).model
    assert model.params.stay.sigmoid().tolist() == pytest.approx([0.9] * 4)
    with pytest.raises(TrellisError, match=r"stay is 1.5: it must be in \(0, 1\)"):
        library.train(["a b"] * 20, params_options="stay=1.5", **settings)


def test_em_refuses_it(installed: Path) -> None:
    with pytest.raises(TrellisError, match="gradient"):
        library.train(["a b", "b a"] * 20, states=4, params="sticky", learner="em")


def test_on_the_command_line(place: Path) -> None:
    words = ["--data", place / "text.txt", "--states", 8, "--set", "model.params=sticky", "--run", place / "sticky"]
    words += ["--set", "train.learner=gradient", "--set", "train.lr=0.1", "--set", "train.epochs=20"]
    answer = json.loads(trellis(place, "train", *words, "--json", "--quiet"))
    unigram, *_, sticky = answer["scores"]["rows"]
    assert sticky["test"] < unigram["test"]
    assert len(json.loads(trellis(place, "sample", place / "sticky", "-n", 2, "--json"))) == 2
