"""The saved counters of training."""

from __future__ import annotations

import pytest

from trellis.training.state import TrainState


def test_counters_survive_saving() -> None:
    state = TrainState(step=7, epoch=2, batch=1, tokens=90, seconds=1.5, best=31.0, best_step=5, lines=2)
    assert TrainState.from_json(state.to_json()) == state


@pytest.mark.parametrize(("name", "value"), [("epoch", -1), ("step", -(2**63)), ("tokens", 1.5), ("lines", True)])
def test_impossible_counters_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"its {name} is {value}"):
        TrainState.from_json(TrainState().to_json() | {name: value})
