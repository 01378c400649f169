"""Baum-Welch against the same peers: tokens per second, with the same initial parameters and number of iterations."""

from __future__ import annotations

from benchmarks.race import race_all


def main(argv: list[str]) -> None:
    race_all("em", ("em",), argv, limit=180.0)
