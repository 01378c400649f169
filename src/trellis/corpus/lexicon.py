"""Words and tags as integer ids; an unknown word is replaced by its spelling class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from trellis.corpus.splits import Split
from trellis.corpus.tokenize import EOS, UNK
from trellis.corpus.vocab import Vocabulary
from trellis.errors import TrellisError

KIND = "<kind "  # the prefix that marks a spelling class; no word has it
LONGEST_SUFFIX = 4
MARKS = {  # the sign of each spelling feature, and whether a word has the feature
    "9": lambda word: any(map(str.isdigit, word)),
    "-": lambda word: "-" in word,
    "@": lambda word: "@" in word or "www" in word or "http" in word,
    ".": lambda word: not any(map(str.isalnum, word)),
    "A": lambda word: word[:1].isupper(),
    "C": lambda word: len(word) > 1 and word.isupper(),
    "a": str.islower,
}
Sentence = Sequence[str]


def kinds_of(word: str, first: bool = False) -> list[str]:
    """The spelling classes of a word, most specific first: its spelling features with the last 4, 3, ..., 0 letters."""
    marks = "".join(mark for mark, has in MARKS.items() if has(word)) + "^" * (first and word[:1].isupper())
    suffixes = [word[-n:].lower() for n in range(LONGEST_SUFFIX, 0, -1) if len(word) > n]
    return [f"{KIND}{marks}:{suffix}>" for suffix in [*suffixes, ""]]


@dataclass(frozen=True)
class Lexicon:
    """A vocabulary of words and spelling classes, and a tag set whose first tag is reserved for <eos>."""

    vocab: Vocabulary
    tags: list[str]

    @classmethod
    def choose(cls, sentences: Sequence[Sentence], tags: Iterable[Sentence], rare: int = 2, common: int = 5) -> Lexicon:
        """A lexicon with all words of the tagged sentences, and the spelling classes with at least `common` tokens of
        rare words. A rare word is one seen at most `rare` times."""
        seen = Counter(chain.from_iterable(sentences))
        kinds = Counter(
            kind
            for sentence in sentences
            for place, word in enumerate(sentence)
            if seen[word] <= rare
            for kind in kinds_of(word, place == 0)
        )
        counts = {**seen, **{kind: count for kind, count in kinds.items() if count >= common}, EOS: len(sentences)}
        return cls(Vocabulary.choose(counts), [EOS, *sorted(set(chain.from_iterable(tags)))])

    def with_words(self, untagged: Iterable[Sentence], fewest: int) -> Lexicon:
        """Add the words that occur at least `fewest` times in untagged sentences and not in the tagged ones, not even
        in lower case. Their count is 0. The first word of a sentence does not count: its capital may come from its
        place."""
        seen = Counter(chain.from_iterable(sentence[1:] for sentence in untagged))
        known = self.vocab.index
        new = [w for w, n in seen.most_common() if n >= fewest and w not in known and w.lower() not in known]
        vocab = replace(self.vocab, words=[*self.vocab.words, *new], counts=[*self.vocab.counts, *[0] * len(new)])
        return replace(self, vocab=vocab)

    def kind(self, word: str, first: bool = False) -> int:
        """The id of the word's most specific spelling class that is in the vocabulary, or else the id of <unk>."""
        index, unknown = self.vocab.index, self.vocab.unk
        assert unknown is not None
        return next((index[kind] for kind in kinds_of(word, first) if kind in index), unknown)

    def word(self, word: str, first: bool, rare: int) -> int:
        """The id of a word if its count is greater than `rare`, or else the id of its spelling class. The first word
        of a sentence and words in all capitals are also looked up in lower case."""
        spellings = [word, word.lower()] if first or word.isupper() else [word]
        for id in (self.vocab.index.get(spelling, -1) for spelling in spellings):
            if id >= 0 and self.vocab.counts[id] > rare:
                return id
        return self.kind(word, first)

    def words(self, sentence: Sentence, rare: int = -1) -> np.ndarray:
        """Ids of the words. Unknown words, and words with a count of at most `rare`, get that of their class."""
        return np.array([self.word(word, place == 0, rare) for place, word in enumerate(sentence)], np.int64)

    def symbols(self, sentence: Sentence, tags: Sentence | None = None, rare: int = -1) -> np.ndarray:
        """The ids of a sentence and its <eos>. With V words in the vocabulary, word x with tag y has the id
        x + V (y + 1), and word x without a tag has the id x. See `emissions.Product`."""
        size, number = len(self.vocab), self.numbers
        unknown = next((tag for tag in tags or () if tag not in number), None)
        if unknown is not None:
            raise TrellisError(f"Unknown tag {unknown!r}; the model's tags are {', '.join(self.tags[1:])}.")
        if not sentence:
            raise TrellisError("Cannot tag an empty sentence; leave it out.")
        ids = np.append(self.words(sentence, rare), self.vocab.eos)
        rows = [0] * len(sentence) if tags is None else [number[tag] + 1 for tag in tags]
        return ids + size * np.array([*rows, 1])

    @property
    def tagged_counts(self) -> dict[str, int]:
        """The count of each word in the tagged text."""
        pairs = zip(self.vocab.words, self.vocab.counts, strict=True)
        return {word: count for word, count in pairs if count and word not in (EOS, UNK) and not word.startswith(KIND)}

    @property
    def numbers(self) -> dict[str, int]:
        return {tag: number for number, tag in enumerate(self.tags)}

    def kinds(self) -> np.ndarray:
        """The spelling class of each word of the vocabulary, [V]. It is -1 for the classes themselves, <eos> and
        <unk>."""
        words = self.vocab.words
        return np.array([-1 if w in (EOS, UNK) or w.startswith(KIND) else self.kind(w) for w in words])


def as_split(sentences: Sequence[np.ndarray]) -> Split:
    """Concatenate sentences of ids into a Split."""
    ends = np.cumsum([0, *map(len, sentences)])
    return Split(np.concatenate(sentences), ends, ends[[0, -1]])
