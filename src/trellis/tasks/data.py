"""The text on which a trained model is evaluated, in the model's own vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trellis.config import DataConfig
from trellis.corpus import Split, load_corpus
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel

ALL = "all"


def load_split(model: LanguageModel, about: dict[str, Any], source: str | None, name: str | None) -> Split:
    """A split of `source` (default: the corpus of the training) with the token ids of the model.

    Where none is named it is test, or all of a source that has no splits of its own."""
    if source is None and "data" not in about:
        raise TrellisError("The model does not say on which corpus it was trained; name one with --data.")
    config = DataConfig(**about.get("data", {}))
    if source is not None and source != config.source:
        vocab = model.vocab
        alike = replace(config, tokenizer=vocab.tokenizer, lower=vocab.lower, digits=vocab.digits)
        config = replace(alike, source=source, valid_fraction=0.0, test_fraction=0.0)
    corpus = load_corpus(config, vocab=model.vocab)
    name = name or ("test" if "test" in corpus.splits else ALL)
    return join(list(corpus.splits.values())) if name == ALL else corpus[name]


def join(splits: list[Split]) -> Split:
    """Several splits as one."""
    if len(splits) == 1:
        return splits[0]
    starts = np.cumsum([0] + [split.tokens.size for split in splits])

    def offsets(field: str) -> np.ndarray:
        pieces = [getattr(split, field)[:-1] + start for split, start in zip(splits, starts, strict=False)]
        return np.concatenate([*pieces, starts[-1:]])

    return Split(np.concatenate([split.tokens for split in splits]), offsets("sentences"), offsets("documents"))
