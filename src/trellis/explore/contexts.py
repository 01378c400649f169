"""Tokens of a text in their context."""

from __future__ import annotations

from typing import Any

import numpy as np

from trellis.corpus import Split, Vocabulary


def shortened(split: Split, most: int) -> Split:
    """The whole sentences among the first `most` tokens of a text; at least one sentence."""
    ends = split.sentences[: max(2, int(np.searchsorted(split.sentences, most, side="right")))]
    documents = np.append(split.documents[split.documents < ends[-1]], ends[-1])
    return Split(split.tokens[: ends[-1]], ends, documents)


def in_context(vocab: Vocabulary, split: Split, place: int, before: int, after: int) -> dict[str, Any]:
    """A token with its context in the sentence: at most `before` tokens before it and `after` tokens after it."""
    sentence = int(np.searchsorted(split.sentences, place, side="right"))
    begin, end = (int(i) for i in split.sentences[sentence - 1 : sentence + 1])
    words, here = vocab.decode(split.tokens[begin:end].tolist()), place - begin
    return {
        "before": words[max(0, here - before) : here],
        "word": words[here],
        "after": words[here + 1 : here + 1 + after],
    }
