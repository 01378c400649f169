"""The options of a parameterisation, in a file that does not import torch."""

from dataclasses import dataclass

from trellis.options import Options, option


@dataclass(frozen=True)
class StickyOptions(Options):
    stay: float = option(0.5, "initial probability of staying in a state", within="(0, 1)")
