"""Baum-Welch against the same peers, and of every class against hmmlearn: tokens per second, from the same parameters.

python -m benchmarks em --classes     # only the classes of hmmlearn: about 30 minutes
"""

from __future__ import annotations

from benchmarks import em_classes
from benchmarks.race import options, race_all


def main(argv: list[str]) -> None:
    rest = [argument for argument in argv if argument != "--classes"]
    chosen = options(rest, limit=180.0)
    if "--classes" not in argv:
        race_all("em", ("em",), rest, limit=180.0)
    em_classes.run(chosen.quick, chosen.repeats)
