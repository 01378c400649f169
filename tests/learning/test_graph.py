"""When work on a GPU is run, captured and replayed; without a GPU, on a pretended one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from trellis.learning.graph import Captured, Graphed

PATIENCE = 2


class Work:
    """Doubles a tensor, and records every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    def __call__(self, given: dict[str, Tensor], choice: Any) -> dict[str, Tensor]:
        self.calls.append((choice, self.graphed.capturing))
        return {"made": 2 * given["x"]}

    graphed: Graphed


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Work on a CPU that is taken for a GPU; a replay repeats it in place."""
    for name in ("Stream", "current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    work = Work()
    work.graphed = Graphed(work, torch.device("cpu"), PATIENCE)
    work.graphed.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
    monkeypatch.setattr(work.graphed, "moved", dict)

    def capture(given: dict[str, Tensor], choice: Any) -> Captured:
        inputs = {name: value.clone() for name, value in given.items()}
        made = work(inputs, choice)
        graph = SimpleNamespace(replay=lambda: made["made"].copy_(2 * inputs["x"]))
        return Captured(graph, inputs, made)  # type: ignore[arg-type]

    monkeypatch.setattr(work.graphed, "capture", capture)
    return work


def run(work: Work, x: list[float], choice: str = "a", steady: bool = True) -> list[float]:
    return work.graphed({"x": torch.tensor(x)}, choice, steady)["made"].tolist()


def test_steady_work_is_captured_after_a_few_calls(work: Work) -> None:
    for step in range(6):
        assert run(work, [step, 1.0]) == [2 * step, 2.0]
    assert work.calls == [("a", False)] * PATIENCE + [("a", True)]
    assert not work.graphed.capturing


def test_each_shape_and_choice_has_a_graph(work: Work) -> None:
    for _ in range(5):
        assert run(work, [1.0]) == [2.0]
        assert run(work, [1.0, 2.0]) == [2.0, 4.0]
        assert run(work, [3.0], "b") == [6.0]
    assert len(work.graphed.captured) == 3
    assert len(work.calls) == 3 * (PATIENCE + 1)


@pytest.mark.parametrize("steady", [True, False])
def test_the_work_and_its_caller_wait_for_each_other(work: Work, steady: bool) -> None:
    """Without this, a GPU may read numbers before they are written."""
    run(work, [1.0], steady=steady)
    own: Any = work.graphed.stream
    caller: Any = torch.cuda.current_stream()
    own.wait_stream.assert_called_once_with(caller)
    caller.wait_stream.assert_called_once_with(own)


def test_other_work_is_never_captured(work: Work) -> None:
    for _ in range(5):
        assert run(work, [1.0], steady=False) == [2.0]
    assert work.calls == [("a", False)] * 5
    assert not work.graphed.captured


def test_forgotten_graphs_are_captured_again(work: Work) -> None:
    for _ in range(2):
        for _ in range(PATIENCE + 2):
            run(work, [1.0])
        work.graphed.forget()
    assert work.calls == ([("a", False)] * PATIENCE + [("a", True)]) * 2


def test_a_failed_capture_ends(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work.graphed, "capture", MagicMock(side_effect=RuntimeError("out of memory")))
    for _ in range(PATIENCE):
        run(work, [1.0])
    with pytest.raises(RuntimeError, match="out of memory"):
        run(work, [1.0])
    assert not work.graphed.capturing


def test_the_cpu_runs_all_work() -> None:
    work = Work()
    work.graphed = Graphed(work, torch.device("cpu"), PATIENCE)
    for step in range(5):
        assert run(work, [step]) == [2 * step]
    assert work.calls == [("a", False)] * 5
