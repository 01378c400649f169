"""The options of a parameterization, apart from it: this file needs no torch."""

from dataclasses import dataclass

from trellis.options import Options, option


@dataclass(frozen=True)
class StickyOptions(Options):
    stay: float = option(0.5, "probability of staying in a state, before training", within="(0, 1)")
