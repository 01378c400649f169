"""The explorer's views of a neural language model."""

from typing import ClassVar

from torch import Tensor

from trellis.explore.language import LanguageViews
from trellis.explore.neighbours import NeighbourViews
from trellis.families.neural.base import NeuralModel


class NeuralViews(LanguageViews, NeighbourViews):
    """Views of a neural language model: those of a language model, and its word embeddings."""

    views: ClassVar[tuple[str, ...]] = (*LanguageViews.views, "neighbours")
    model: NeuralModel

    def word_vectors(self) -> Tensor:
        return self.model.embedding.detach()
