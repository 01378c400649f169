"""A transition from outside in two files: ring.py and its parameterisation, ring_params.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from outside import trellis
from ring import Ring
from ring_params import RingParams

import trellis as library
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.testing import check_family, check_parameters, check_transition
from trellis.testing.problems import seeded
from trellis.transitions import Countable

STATES = 5


def by_distance(ring: Countable, pairs: torch.Tensor) -> torch.Tensor:
    turned = [torch.eye(STATES).double().roll(j, 1) for j in range(len(ring.jumps))]
    return torch.stack([(pairs * matrix).sum() for matrix in turned])


@pytest.mark.parametrize("reach", [1, 3, STATES])
def test_the_transition(reach: int) -> None:
    logits = torch.randn(reach, generator=seeded(1), dtype=torch.float64)
    check_transition(lambda x: Ring(x.softmax(-1), STATES), logits, statistics=by_distance, inverts=False)


def test_the_parameters() -> None:
    check_parameters(RingParams(STATES, 6, reach=3))


@pytest.mark.parametrize("learner", ["em", "stepwise-em", "gradient"])
def test_the_family_with_it(installed: Path, learner: str) -> None:
    check_family("hmm", states=6, params="ring", params_options="reach=3", learner=learner)


def test_its_options_are_checked_before_any_text_is_read(installed: Path) -> None:
    for text, message in {
        "reach=0": "reach is 0: it must be at least 1",
        "reech=2": "Unknown key 'model.params_options.reech'; did you mean|known are reach",
        "reach=far": "model.params_options.reach must be an integer",
        "reach": "has no '='",
    }.items():
        with pytest.raises(TrellisError, match=message):
            HMMConfig(params="ring", params_options=text)
    with pytest.raises(TrellisError, match=r'"ring" does not support model.dropout = "state": use "none"'):
        HMMConfig(params="ring", dropout="state")
    with pytest.raises(TrellisError, match='"table" has no such options'):
        HMMConfig(params_options="reach=2")
    with pytest.raises(TrellisError, match="did you mean 'ring'"):
        HMMConfig(params="rings")


def test_on_the_command_line(place: Path) -> None:
    assert "| ring | sticky" in trellis(place, "config", "hmm")
    run = place / "ring"
    words = ["--data", place / "text.txt", "--states", 10, "--set", "model.params=ring", "--set", "train.epochs=20"]
    words += ["--set", "model.params_options=reach=2", "--set", "batches.order=sentences"]
    answer = json.loads(trellis(place, "train", *words, "--run", run, "--json", "--quiet"))
    unigram, *_, ring = answer["scores"]["rows"]
    assert ring["test"] < unigram["test"]
    assert json.loads(trellis(place, "info", run, "--json"))["reach"] == 2
    assert trellis(place, "infill", run, "the cat ___ the dog")


def test_a_model_whose_package_is_gone(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = library.train(["a b", "b a"] * 20, states=4, params="ring", epochs=1).model
    model.save(tmp_path / "model")
    assert library.load(tmp_path / "model").params.reach == 2
    monkeypatch.undo()
    with pytest.raises(TrellisError, match=r"model.params is 'ring', which is not recognised"):
        library.load(tmp_path / "model")
