"""Forward, smoothing and Viterbi: tokens per second, against hmmlearn, dynamax, pomegranate and plain NumPy."""

from __future__ import annotations

from benchmarks.race import race_all


def main(argv: list[str]) -> None:
    race_all("forward", ("forward", "smooth", "viterbi"), argv, limit=40.0)
