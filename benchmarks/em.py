"""Baum-Welch: tokens per second of the same iterations from the same start, beside the same peers."""

from __future__ import annotations

from benchmarks.race import race_all


def main(argv: list[str]) -> None:
    race_all("em", ("em",), argv, limit=180.0)
