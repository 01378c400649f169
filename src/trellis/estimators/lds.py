"""`LDSVectors`: contextual token vectors, with an estimator's fit and transform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from trellis.corpus import Vocabulary
from trellis.corpus.lexicon import as_split
from trellis.corpus.load import check_sentences, tokens_of
from trellis.corpus.tokenize import EOS
from trellis.errors import TrellisError
from trellis.families.lds.learning import count_text, fit_lds
from trellis.families.lds.model import LDS


@dataclass(repr=False, eq=False)
class LDSVectors(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[call-arg]
    """Computes a unit vector for each token in its context, with a linear dynamical system.

    Sentences are strings, which are split at spaces, or lists of tokens. `transform` returns an array [tokens, dim] for
    each sentence.

    Parameters
    ----------
    dim
        The size of the vectors.
    iterations
        The number of EM iterations.
    blocks
        Block rows of the Hankel matrix in subspace identification.
    horizon
        The number of lags that EM uses.
    pseudocount
        Pseudocounts added to the count of every word, which reduce the scale of rare words.
    prior
        Pseudocounts of every word that increase the variance of the noise, to prevent overfitting of rare words.
    min_count
        Words that occur fewer times than this become <unk>.
    what
        "smoothed" (given the whole sentence), "filtered" (given the words so far) or "type" (one vector per word).
    seed
        The random seed.

    Examples
    --------
    >>> text = ["the cat sees the dog", "a dog sees a cat", "the dog runs"] * 20
    >>> trellis.LDSVectors(2).fit_transform(text)[0].shape
    (5, 2)
    """

    dim: int = 100
    iterations: int = 10
    blocks: int = 4
    horizon: int = 7
    pseudocount: float = 5.0
    prior: float = 5.0
    min_count: int = 1
    what: str = "smoothed"
    seed: int = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def fit(self, sentences: Iterable[Any], y: object = None) -> LDSVectors:
        """Fit an LDS to sentences; `model_` is the LDS."""
        check_sentences(sentences)
        lines = [[*tokens_of(sentence, "whitespace"), EOS] for sentence in sentences]
        vocab = Vocabulary.choose(Counter(chain.from_iterable(lines)), self.min_count)
        moments = count_text(vocab, as_split([vocab.encode(line) for line in lines]), self.blocks, self.horizon)
        lags = {"blocks": self.blocks, "horizon": self.horizon}
        priors = {"pseudocounts": self.pseudocount, "noise_prior": self.prior}
        self.model_ = fit_lds(vocab, moments, self.dim, self.iterations, self.seed, **lags, **priors)
        return self

    def transform(self, sentences: Iterable[Any]) -> list[np.ndarray]:
        """The vectors of the tokens of each sentence. An unknown word is treated as missing: its vector depends on the
        context alone."""
        model: LDS | None = getattr(self, "model_", None)
        if model is None:
            raise TrellisError("LDSVectors is not fitted yet; call fit first.")
        check_sentences(sentences)
        return cast(list[np.ndarray], model.embed(list(sentences), self.what))

    def fit_transform(self, sentences: Iterable[Any], y: object = None) -> list[np.ndarray]:
        check_sentences(sentences)
        sentences = list(sentences)
        return self.fit(sentences).transform(sentences)
