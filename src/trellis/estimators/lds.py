"""`LDSVectors`: vectors of tokens in context, with the fit and transform of an estimator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import numpy as np

from trellis.corpus import Split, Vocabulary
from trellis.corpus.tokenize import EOS
from trellis.errors import TrellisError
from trellis.families.lds.learning import PRIOR, PSEUDOCOUNT, count_text, fit_lds
from trellis.families.lds.model import LDS


class LDSVectors:
    """Sentences, whitespace between their words, in; for each an array [tokens, dim] of unit vectors out."""

    def __init__(
        self,
        dim: int = 100,
        iterations: int = 10,
        blocks: int = 4,
        horizon: int = 7,
        pseudocount: float = PSEUDOCOUNT,
        prior: float = PRIOR,
        min_count: int = 1,
        what: str = "smoothed",
        seed: int = 0,
    ) -> None:
        self.dim, self.iterations, self.blocks, self.horizon = dim, iterations, blocks, horizon
        self.pseudocount, self.prior, self.min_count, self.what, self.seed = pseudocount, prior, min_count, what, seed

    def fit(self, sentences: Iterable[str], y: object = None) -> LDSVectors:
        """Learn from sentences; `model_` is the LDS."""
        lines = [[*sentence.split(), EOS] for sentence in sentences]
        vocab = Vocabulary.choose(Counter(chain.from_iterable(lines)), self.min_count)
        tokens = vocab.encode(list(chain.from_iterable(lines)))
        ends = np.cumsum([0, *map(len, lines)])
        moments = count_text(vocab, Split(tokens, ends, ends[[0, -1]]), self.blocks, self.horizon)
        self.model_ = fit_lds(
            vocab,
            moments,
            self.dim,
            self.iterations,
            self.blocks,
            self.horizon,
            self.pseudocount,
            self.prior,
            self.seed,
        )
        return self

    def transform(self, sentences: Iterable[str]) -> list[np.ndarray]:
        """The vectors of the tokens of each sentence; a word that was not seen says nothing, its neighbours do."""
        model: LDS | None = getattr(self, "model_", None)
        if model is None:
            raise TrellisError("LDSVectors has not learned from a text yet; call fit first.")
        words = [sentence.split() for sentence in sentences]
        if not all(words):
            raise TrellisError(f"Sentence {words.index([]) + 1} has no words; leave it out.")
        return [vectors.float().cpu().numpy() for vectors in model.embed(words, self.what)]

    def fit_transform(self, sentences: Iterable[str], y: object = None) -> list[np.ndarray]:
        sentences = list(sentences)
        return self.fit(sentences).transform(sentences)
