"""Commands run in this process, and a text for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trellis.cli.main import main

SENTENCES = [
    "the cat sees the dog",
    "a dog sees a cat",
    "the dog runs",
    "a cat runs and the dog sees",
    "the cat sleeps",
]
SMALL = ["--states", "4", "--set", "train.learner=em", "--set", "train.epochs=3", "--set", "batches.order=sentences"]


def run(*words: object) -> int:
    """The exit code of a command run in this process."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def parsed(out: str, command: object, *words: object) -> Any:
    """The JSON of a command: a list of the rows of those that print JSON lines."""
    if command in ("score", "infill", "embed", "parse") and not {"-o", "--svg"} & {*map(str, words)}:
        return [json.loads(line) for line in out.splitlines()]
    return json.loads(out)


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """What a command says to machines."""
    assert run(*words, "--json", "--quiet") == 0
    return parsed(capsys.readouterr().out, *words)
