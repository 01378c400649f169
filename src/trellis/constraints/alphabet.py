"""The tokens that automata read: their ids, and how they form a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from trellis.constraints.pieces import phrase, pieces_of, refuse
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
    utf8
        The bytes of each token in UTF-8, if tokens may be parts of characters. The whole text is then these bytes, one
        after another. None: tokens consist of characters.
    replaces
        Whether bytes that are not UTF-8 are read as U+FFFD, one for each part that Python would replace. Otherwise, no
        regular expression matches a text with such bytes.
    """

    words: Sequence[str]
    end: int | None
    encode: Callable[[str], list[int]]
    join: Callable[[Sequence[str]], str]
    utf8: Sequence[bytes] | None = None
    replaces: bool = True

    @classmethod
    def of_vocabulary(cls, vocab: Any) -> Alphabet:
        """The tokens of a `trellis.Vocabulary`."""

        def encode(text: str) -> list[int]:
            tokens = vocab.split(text)
            unknown = next((token for token in tokens if token not in vocab.index), None)
            if unknown is not None and vocab.words[vocab.eos] in text:
                end = vocab.words[vocab.eos]
                raise TrellisError(
                    f"{end} is the end of a sentence, not one of its words; for the last words, use `ends`."
                )
            if unknown is not None:
                raise TrellisError(f"The word {unknown!r} is not among the {len(vocab):,} words of the vocabulary.")
            return [vocab.index[token] for token in tokens]

        words = ["\n" if i == vocab.eos else word for i, word in enumerate(vocab.words)]
        utf8 = [word.encode("latin-1", "replace") for word in words] if vocab.tokenizer == "bytes" else None
        return cls(words, vocab.eos, encode, vocab.join, utf8)

    @classmethod
    def of_tokenizer(cls, tokenizer: Any, end: int | None = None) -> Alphabet:
        """The tokens of a tokenizer of `transformers`. The text of a token is what it adds to a text, including its
        spaces. By default, `end` is the end-of-sequence token of the tokenizer."""
        texts, utf8, split, joined, replaces = pieces_of(tokenizer)
        encode = partial(phrase, tokenizer, utf8)
        end = tokenizer.eos_token_id if end is None else end
        return cls(texts, end, encode, "".join if joined else refuse, utf8 if split and joined else None, replaces)

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
