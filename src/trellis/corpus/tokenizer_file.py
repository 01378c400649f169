"""Corpora with the token ids of a `tokenizer.json`, a file of the package `tokenizers`. An HMM trained on such a corpus
can guide any model that uses this tokenizer. Encoding texts needs the package; sequences of ids do not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trellis.config import DataConfig
from trellis.corpus.encode import encode_sentences
from trellis.corpus.load import Corpus, describe
from trellis.corpus.recipe import make_recipe
from trellis.corpus.tokenize import EOS
from trellis.corpus.vocab import Vocabulary
from trellis.errors import TrellisError

ENDS = ("<|endoftext|>", "</s>", "<eos>", "[SEP]", "<|end_of_text|>", "<|im_end|>")


def tokens_of_file(path: str | Path) -> list[str]:
    """The tokens of a tokenizer.json in the order of their ids."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        model = data["model"]["vocab"]
        index = dict(model) if isinstance(model, dict) else {piece[0]: i for i, piece in enumerate(model)}
        index |= {token["content"]: token["id"] for token in data.get("added_tokens", [])}
    except OSError as error:
        raise TrellisError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TrellisError(f"{path} is not a tokenizer.json of the package tokenizers.") from error
    words = [f"<unused {i}>" for i in range(1 + max(index.values(), default=-1))]
    for word, i in index.items():
        words[i] = word
    return words


def corpus_of_tokenizer(
    data: Iterable[str | Sequence[int]], path: str | Path, end: str | None = None, **settings: Any
) -> Corpus:
    """Texts, or sequences of ids, as a corpus whose token ids are those of a tokenizer.json.

    `end` is the token that ends a text; by default, the usual end token of the tokenizer. In the vocabulary, it is
    called <eos>. Sequences must not contain it, except at their end. `settings` are options of [data].
    """
    words = tokens_of_file(path)
    chosen = end if end is not None else next((token for token in ENDS if token in words), None)
    if chosen is None or chosen not in words:
        raise TrellisError(f"{path} has no token {end or 'that ends a text'!r}; pass `end`, one of its tokens.")
    last = words.index(chosen)
    words[last] = EOS
    rows = [without_end(row, last, len(words)) for row in encoded(list(data), path)]
    counts = np.bincount(np.concatenate([*rows, np.full(len(rows), last)]), minlength=len(words))
    vocab = Vocabulary(words, counts.tolist())
    recipe = make_recipe(DataConfig(source="", **settings))
    tokens = [vocab.decode(row.tolist()) for row in rows]
    vocab, splits = encode_sentences(tokens, [1 + sum(map(len, row)) for row in tokens], recipe, vocab)
    return Corpus(vocab, splits, describe(f"{len(rows):,} texts", vocab, splits), recipe)


def encoded(data: list[Any], path: str | Path) -> list[Any]:
    """The token ids of every text; sequences of ids are unchanged."""
    if not any(isinstance(one, str) for one in data):
        return data
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TrellisError(
            f"Encoding text with {path} needs the package tokenizers; pass token ids instead."
        ) from error
    tokenizer = Tokenizer.from_file(str(path))
    return [tokenizer.encode(one, add_special_tokens=False).ids if isinstance(one, str) else one for one in data]


def without_end(row: Any, last: int, size: int) -> np.ndarray:
    """Check a sequence of ids, and return it without a final end token."""
    ids = np.asarray(row, np.int64).reshape(-1)
    ids = ids[:-1] if ids.size and ids[-1] == last else ids
    wrong = ids[(ids < 0) | (ids >= size) | (ids == last)]
    if wrong.size:
        raise TrellisError(f"A sequence contains the id {wrong[0]}, which is the end of a text or not below {size:,}.")
    return ids
