"""CUDA graphs of small problems, pretended where there is no GPU."""

from typing import Any

import pytest
import torch

from operators import flat
from trellis.engines import replay


def replay_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, a graph runs its function again, and its results are unset until then."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(replay, "on_gpu", lambda tensor: True)
        monkeypatch.setattr(replay.Replay, "capture", capture)


def capture(graph: replay.Replay, problem: tuple[Any, ...]) -> Any:
    def run_again() -> None:
        for place, value in zip(flat(graph.made), flat(graph.function(*problem)), strict=True):
            place.copy_(value)

    graph.made = graph.function(*problem)
    for place in flat(graph.made):
        place.fill_(-7)
    return run_again
