"""Word2vec vectors, by gensim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trellis.errors import TrellisError

WINDOW, NEGATIVE = 3, 5  # of CBOW, the best in the LDS paper


def cbow(sentences: Sequence[Sequence[str]], dim: int, *, min_count: int, epochs: int, seed: int) -> Any:
    """Word vectors, with the attributes `index_to_key` (the words) and `vectors`."""
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise TrellisError("word2vec needs gensim: pip install gensim.") from error
    return Word2Vec(
        sentences, vector_size=dim, window=WINDOW, sg=0, negative=NEGATIVE, min_count=min_count, workers=1,
        epochs=epochs, seed=seed,
    ).wv  # fmt: skip
