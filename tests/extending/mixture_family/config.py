"""The options of a mixture."""

from __future__ import annotations

from dataclasses import dataclass

from trellis.config import ModelConfig
from trellis.options import option


@dataclass(frozen=True)
class MixtureConfig(ModelConfig):
    """How many components."""

    family: str = "mixture"
    components: int = option(4, "unigram models that are mixed", within="[1, inf)")
    smoothing: str = option("none", "of the words of a component", choices=("none", "flat"))
