"""How the cost of the forward pass grows with states and with steps: it should be O(T K^2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.problem import Problem
from benchmarks.race import Case, Runner, options, race
from benchmarks.report import emit

STATES = (16, 32, 64, 128, 256, 512)  # 512 sequences of 128 steps
STEPS = (1000, 3000, 10_000, 30_000, 100_000)  # 128 sequences, 16 states


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log seconds over log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main(argv: list[str]) -> None:
    chosen = options(argv, limit=60.0)
    runner = Runner("trellis-float32", int(chosen.memory * 2**30), chosen.limit)

    def times(problems: Sequence[Problem]) -> list[float]:
        tracks = [race([runner], Case(problem, 0), "forward", chosen.repeats)[runner.name] for problem in problems]
        return [min(track.runs) for track in tracks]

    def report(metric: str, theory: float, sizes: Sequence[int], seconds: Sequence[float], tail: int) -> None:
        fitted = exponent(sizes, seconds)
        emit(
            bench="growth", case="forward, float32", metric=metric, ours=fitted, peer="theory", peers=theory,
            ratio=theory / fitted, unit="exponent", tail_exponent=exponent(sizes[-tail:], seconds[-tail:]),
            sizes=list(sizes), seconds=list(seconds),
        )  # fmt: skip

    try:
        report("states", 2.0, STATES, times([Problem(states, 512, 128, 100) for states in STATES]), tail=3)
        report("steps", 1.0, STEPS, times([Problem(16, 128, steps, 100) for steps in STEPS]), tail=2)
    finally:
        runner.stop()
