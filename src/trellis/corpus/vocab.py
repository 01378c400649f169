"""The vocabulary: a mapping between words and ids, with the preprocessing that turns raw text into tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from trellis.corpus.tokenize import EOS, TOKENIZERS, UNK, treat
from trellis.errors import TrellisError

GAP = "___"  # in a query: one missing token, with any tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """The words of a model, and the preprocessing that turns text into words.

    `Vocabulary.choose` orders words by frequency, then alphabetically.

    Parameters
    ----------
    words
        The word with id i is `words[i]`.
    counts
        The word with id i occurs `counts[i]` times in the training text.
    tokenizer
        How text is split into tokens: "whitespace", "words", "characters", "bytes" or "symbols".
    lower
        Whether text is converted to lower case.
    digits
        Whether each run of digits is replaced by N.

    Examples
    --------
    >>> vocab = trellis.Vocabulary.choose({"a": 3, "b": 1, "<eos>": 2})
    >>> vocab.words
    ['a', '<eos>', 'b', '<unk>']
    """

    words: list[str]
    counts: list[int]
    tokenizer: str = "whitespace"
    lower: bool = False
    digits: bool = False

    @classmethod
    def choose(
        cls,
        counts: Mapping[str, int],
        min_count: int = 1,
        max_size: int = 0,
        unk: bool = True,
        tokenizer: str = "whitespace",
        lower: bool = False,
        digits: bool = False,
    ) -> Vocabulary:
        """A vocabulary of the words that occur at least `min_count` times. `max_size` limits the number of words,
        including <eos> and <unk>.

        The counts of the excluded words are added to the count of <unk>.
        """
        special = {EOS: counts.get(EOS, 0)} | ({UNK: counts.get(UNK, 0)} if unk or UNK in counts else {})
        ranked = sorted(
            (word for word, count in counts.items() if count >= max(min_count, 1) and word not in special),
            key=lambda word: (-counts[word], word),
        )
        kept = {word: counts[word] for word in (ranked[: max(max_size - len(special), 0)] if max_size else ranked)}
        if UNK in special:
            special[UNK] = sum(counts.values()) - sum(kept.values()) - special[EOS]
        ordered = sorted((special | kept).items(), key=lambda item: (-item[1], item[0]))
        words, totals = zip(*ordered, strict=True)
        return cls(list(words), list(totals), tokenizer, lower, digits)

    def check(self) -> None:
        """Raise ValueError if the words and preprocessing do not form a valid vocabulary."""
        if not all(isinstance(word, str) for word in self.words) or len(set(self.words)) != len(self.words):
            raise ValueError("the words of the vocabulary are not distinct strings")
        if not all(type(count) is int and 0 <= count < 1 << 63 for count in self.counts):
            raise ValueError("the counts of the vocabulary are not integers of at least 0")
        if EOS not in self.index or len(self.words) != len(self.counts) or self.tokenizer not in TOKENIZERS:
            raise ValueError("the vocabulary is invalid")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        """A mapping from words to ids."""
        return {word: i for i, word in enumerate(self.words)}

    @property
    def eos(self) -> int:
        """The id of the end-of-sentence token."""
        return self.index[EOS]

    @property
    def unk(self) -> int | None:
        """The id of <unk>, or None if the vocabulary has no <unk>."""
        return self.index.get(UNK)

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Encode words as int64 ids [len(words)]."""
        missing = -1 if self.unk is None else self.unk
        ids = np.fromiter((self.index.get(word, missing) for word in words), np.int64, len(words))
        if self.unk is None and (ids < 0).any():
            position = int(np.argmax(ids < 0))
            raise TrellisError(
                f"The word {words[position]!r} (number {position + 1}) is not among the {len(self):,} words of the "
                f"vocabulary, which has no {UNK}; replace the word, or train with unk = true."
            )
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words with these ids."""
        return [self.words[i] for i in ids]

    def split(self, line: str, gap: str | None = None) -> list[str]:
        """Tokenise a line with the preprocessing of the training text.

        With any tokenizer, each occurrence of the string `gap` (usually GAP, which is ___) is one token. It stands for
        a missing word, character, byte or symbol.
        """
        if gap and (repeated := re.search(rf"{gap}\{{\d*,?\d*\}}", line)):
            raise TrellisError(
                f"A gap is {gap}, for one missing word; for {repeated[0]}, use `trellis generate --template`."
            )
        split = TOKENIZERS[self.tokenizer].split
        first, *rest = [split(treat(part, self.lower, self.digits)) for part in (line.split(gap) if gap else [line])]
        return [*first, *(token for part in rest for token in (str(gap), *part))]

    def spans(self, line: str) -> list[tuple[int, int]] | None:
        """The characters [start, end) of each token that `split` returns.

        The result is None if some token does not correspond to characters of the line. For example, the tokenizer
        "characters" with `digits` turns the three characters "123" into the single token "N".

        >>> trellis.Vocabulary(["<eos>"], [1], "words").spans("a cat's")
        [(0, 1), (2, 7)]
        """
        tokenizer = TOKENIZERS[self.tokenizer]
        matches = tokenizer.piece.finditer(line)
        pieces = [(match.span(), tokenizer.split(treat(match[0], self.lower, self.digits))) for match in matches]
        if [token for _, tokens in pieces for token in tokens] != self.split(line):
            return None
        return [span for span, tokens in pieces for _ in tokens]

    def join(self, tokens: Iterable[str]) -> str:
        """Detokenise into readable text, one line per sentence."""
        sentences: list[list[str]] = [[]]
        for token in tokens:
            if token == EOS:
                sentences.append([])
            else:
                sentences[-1].append(token)
        return "\n".join(map(TOKENIZERS[self.tokenizer].join, sentences))

    def to_json(self) -> str:
        """Serialise the words, their counts and the preprocessing as a JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Restore a vocabulary written by `to_json`."""
        return cls(**json.loads(text))
