"""Commands run in this process, and a text for them."""

from __future__ import annotations

import pytest

from trellis.cli.main import main

SENTENCES = [
    "the cat sees the dog",
    "a dog sees a cat",
    "the dog runs",
    "a cat runs and the dog sees",
    "the cat sleeps",
]


def run(*words: object) -> int:
    """The exit code of a command run in this process."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code
