"""The explorer's views of a linear dynamical system: the neighbours of words, and its dynamics."""

from typing import ClassVar

from torch import Tensor

from trellis.explore.neighbours import NeighbourViews
from trellis.families.lds.model import LDS


class LDSViews(NeighbourViews):
    """Views of an LDS."""

    views: ClassVar[tuple[str, ...]] = ("neighbours",)
    model: LDS

    def word_vectors(self) -> Tensor:
        return self.model.type_vectors()
