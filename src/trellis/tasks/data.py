"""The text on which a trained model is evaluated, in the model's own vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trellis.config import DataConfig
from trellis.corpus import Split, load_corpus
from trellis.models import LanguageModel

WHOLE = "all"


def load_split(model: LanguageModel, about: dict[str, Any], source: str | None, name: str | None) -> Split:
    """A split of `source` (default: the corpus of the training) with the token ids of the model."""
    trained_on = DataConfig(**about.get("data", {}))
    if source is None or source == trained_on.source:
        corpus = load_corpus(trained_on)
    else:
        vocab = model.vocab
        alike = replace(trained_on, tokenizer=vocab.tokenizer, lower=vocab.lower, digits=vocab.digits)
        corpus = load_corpus(replace(alike, source=source, min_count=1, max_size=0, unk=False))
    split = join(list(corpus.splits.values())) if name == WHOLE else corpus[name or "test"]
    if corpus.vocab.words == model.vocab.words:
        return split
    return Split(model.vocab.encode(corpus.vocab.words)[split.tokens], split.sentences, split.documents)


def join(splits: list[Split]) -> Split:
    """Several splits as one."""
    starts = np.cumsum([0] + [split.tokens.size for split in splits])

    def offsets(field: str) -> np.ndarray:
        pieces = [getattr(split, field)[:-1] + start for split, start in zip(splits, starts, strict=False)]
        return np.concatenate([*pieces, starts[-1:]])

    return Split(np.concatenate([split.tokens for split in splits]), offsets("sentences"), offsets("documents"))
