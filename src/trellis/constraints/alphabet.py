"""The tokens that automata read: their ids, and how they form a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from trellis.errors import TrellisError

DIGITS = 18  # maximum number of digits of an id


class Alphabet(NamedTuple):
    """The V tokens of a vocabulary, and how they are joined into text, with or without spaces between them.

    Parameters
    ----------
    words
        The text of each token.
    end
        The id of the token that ends a sentence; None if there is no such token.
    encode
        A function from text to ids; it raises an error if a word is unknown.
    join
        A function from the texts of tokens to the whole text.
    """

    words: Sequence[str]
    end: int | None
    encode: Callable[[str], list[int]]
    join: Callable[[Sequence[str]], str]

    @classmethod
    def of_vocabulary(cls, vocab: Any) -> Alphabet:
        """The tokens of a `trellis.Vocabulary`."""

        def encode(text: str) -> list[int]:
            tokens = vocab.split(text)
            unknown = next((token for token in tokens if token not in vocab.index), None)
            if unknown is not None:
                raise TrellisError(f"The word {unknown!r} is not among the {len(vocab):,} words of the vocabulary.")
            return [vocab.index[token] for token in tokens]

        words = ["\n" if i == vocab.eos else word for i, word in enumerate(vocab.words)]
        return cls(words, vocab.eos, encode, vocab.join)

    @classmethod
    def of_tokenizer(cls, tokenizer: Any, end: int | None = None) -> Alphabet:
        """The tokens of a tokenizer of `transformers`. These tokens contain their own spaces. By default, `end` is the
        end-of-sequence token of the tokenizer."""
        words = [tokenizer.decode([i]) for i in range(len(tokenizer))]
        end = tokenizer.eos_token_id if end is None else end
        return cls(words, end, lambda text: list(tokenizer.encode(text, add_special_tokens=False)), "".join)

    @classmethod
    def of_ids(cls, size: int, end: int | None = None) -> Alphabet:
        """Tokens without a text of their own: phrases are ids separated by spaces."""

        def encode(text: str) -> list[int]:
            ids = [int(word) if word.isdecimal() and len(word) <= DIGITS else -1 for word in text.split()]
            if any(not 0 <= i < size for i in ids):
                raise TrellisError(f"The phrase {text!r} has a word that is not an id from 0 to {size - 1}.")
            return ids

        return cls([str(i) for i in range(size)], end, encode, " ".join)

    @property
    def any_word(self) -> np.ndarray:
        """The tokens that do not end a sentence: [V] bool."""
        return np.arange(len(self.words)) != (-1 if self.end is None else self.end)

    def tight(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that never have a space before them, and the tokens that never have a space after them: [V] bool
        each."""
        ends = ~self.any_word
        before = [len(self.join(("a", word))) <= 1 + len(word) for word in self.words]
        after = [len(self.join((word, "a"))) <= 1 + len(word) for word in self.words]
        return np.array(before) | ends, np.array(after) | ends

    def mask(self, tokens: Sequence[int]) -> np.ndarray:
        """A mask [V] that is true for these tokens."""
        mask = np.zeros(len(self.words), bool)
        mask[list(tokens)] = True
        return mask
