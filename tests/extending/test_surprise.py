"""A command from outside in one file: surprise.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import surprise
from outside import install, trellis

import trellis as library
from trellis.testing import check_command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    library.train(["the cat sees the dog", "a stone"] * 20, family="bigram").model.save(folder)
    return folder


def test_conformance(model: Path) -> None:
    check_command("surprise", surprise, model, "the cat sees a stone", "--device", "cpu")


def test_on_the_command_line(place: Path, model: Path) -> None:
    assert surprise.SUMMARY in trellis(place, "--help")
    row = json.loads(trellis(place, "surprise", model, "the cat sees a stone", "--json"))
    assert row["word"] == "a"
    assert "stone" in trellis(place, "surprise", model, "the cat sees a stone")


def test_a_broken_command_leaves_the_others_alone(tmp_path: Path) -> None:
    """One that cannot be imported, one that is no command, and one that would replace `info`."""
    install(tmp_path, "[trellis.commands]\ngone = no_such_module\nempty = json\ninfo = surprise\n")
    assert "family's options and defaults" in trellis(tmp_path, "--help")
    assert "family, size, corpus and scores" in trellis(tmp_path, "--help")
    message = trellis(tmp_path, "empty", code=2)
    assert "'gone' cannot be loaded from no_such_module" in message
    assert "'empty' cannot be loaded from json: it has no SUMMARY" in message
