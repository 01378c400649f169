"""Words by the similarity of their vectors."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.explore.views import Answer, Views


class NeighbourViews(Views):
    """Views of a model in which every word has a vector."""

    @abstractmethod
    def word_vectors(self) -> Tensor:
        """A vector for each word of the vocabulary: [V, d]."""

    @torch.no_grad()
    def neighbours(self, word: str, top: int) -> Answer:
        """The words whose vectors have the largest cosines with that of a word (by default, of the most frequent
        word)."""
        vocab = self.model.vocab
        word = word or next(iter(self.frequent_words()), vocab.words[0])
        if word not in vocab.index:
            raise TrellisError(f"The word {word!r} is not in the vocabulary of the model.")
        vectors = torch.nn.functional.normalize(self.word_vectors(), dim=-1)
        cosines = vectors @ vectors[vocab.index[word]]
        cosines[vocab.index[word]] = -torch.inf
        best = cosines.topk(min(top, len(vocab) - 1))
        pairs = zip(vocab.decode(best.indices.tolist()), best.values.tolist(), strict=True)
        return {"word": word, "items": [{"word": other, "similarity": cosine} for other, cosine in pairs]}
