"""The options of a mixture."""

from __future__ import annotations

from dataclasses import dataclass

from trellis.config import ModelConfig
from trellis.options import option


@dataclass(frozen=True)
class MixtureConfig(ModelConfig):
    """The components of a mixture."""

    family: str = "mixture"
    components: int = option(4, "number of components", within="[1, inf)")
    smoothing: str = option("none", "smoothing of word probabilities", choices=("none", "flat"))
