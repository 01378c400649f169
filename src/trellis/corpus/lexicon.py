"""Words with tags as integers; words that training never saw, or hardly, have a kind: how they are spelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from trellis.corpus.encode import Split
from trellis.corpus.tokenize import EOS, UNK
from trellis.corpus.vocab import Vocabulary
from trellis.errors import TrellisError

KIND = "<kind "  # how the name of a kind begins, and no word
LONGEST_SUFFIX = 4
MARKS = {  # of a spelling, each with its letter
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
    """The kinds of a word, narrowest first: the marks of its spelling with 4, 3, ... and no last letters."""
    marks = "".join(mark for mark, has in MARKS.items() if has(word)) + "^" * (first and word[:1].isupper())
    suffixes = [word[-n:].lower() for n in range(LONGEST_SUFFIX, 0, -1) if len(word) > n]
    return [f"{KIND}{marks}:{suffix}>" for suffix in [*suffixes, ""]]


@dataclass(frozen=True)
class Lexicon:
    """A vocabulary of words and kinds of words, and tags; the end of a sentence has a tag of its own, the first."""

    vocab: Vocabulary
    tags: list[str]
    tagged: Sequence[int] | None = None  # [V]: how often each word has a tag; None: as often as it was seen

    @classmethod
    def choose(
        cls,
        sentences: Sequence[Sentence],
        tags: Iterable[Sentence],
        untagged: Sequence[Sentence] = (),
        rare: int = 2,
        common: int = 5,
    ) -> Lexicon:
        """All words of the sentences, those of untagged text that are not rare, and the kinds that rare words (seen at
        most `rare` times) give at least `common` tokens."""
        texts = [*sentences, *untagged]
        seen = Counter(chain.from_iterable(texts))
        kinds = Counter(
            kind
            for sentence in texts
            for place, word in enumerate(sentence)
            if seen[word] <= rare
            for kind in kinds_of(word, place == 0)
        )
        known = Counter(chain.from_iterable(sentences))
        counts = {word: count for word, count in seen.items() if word in known or count > rare}
        counts |= {kind: count for kind, count in kinds.items() if count >= common} | {EOS: len(texts)}
        vocab = Vocabulary.choose(counts)
        return cls(vocab, [EOS, *sorted(set(chain.from_iterable(tags)))], [known[word] for word in vocab.words])

    def kind(self, word: str, first: bool = False) -> int:
        """The id of the narrowest kind of a word that the vocabulary has; <unk> where it has none."""
        index, unknown = self.vocab.index, self.vocab.unk
        assert unknown is not None
        return next((index[kind] for kind in kinds_of(word, first) if kind in index), unknown)

    def word(self, word: str, first: bool = False, rare: int = 0) -> int:
        """The id of a word that was seen more than `rare` times, at the start of a sentence and all in capitals also
        as it is written elsewhere; else that of its kind."""
        spellings = [word, word.lower()] if first or word.isupper() else [word]
        for id in (self.vocab.index.get(spelling, -1) for spelling in spellings):
            if id >= 0 and self.vocab.counts[id] > rare:
                return id
        return self.kind(word, first)

    def words(self, sentence: Sentence, rare: int = 0) -> np.ndarray:
        """Ids of the words, and of the kinds of those that are unknown or were seen at most `rare` times."""
        return np.array([self.word(word, place == 0, rare) for place, word in enumerate(sentence)], np.int64)

    def symbols(self, sentence: Sentence, tags: Sentence | None = None, rare: int = 0) -> np.ndarray:
        """The words with their tags, or without, and the end with its own: x + V (y + 1), see `emissions.Product`."""
        size, number = len(self.vocab), self.numbers
        unknown = next((tag for tag in tags or () if tag not in number), None)
        if unknown is not None:
            raise TrellisError(f"The tag {unknown!r} is not one of the model's: {', '.join(self.tags[1:])}.")
        if not sentence:
            raise TrellisError("A sentence is empty: there is nothing to tag; leave it out.")
        ids = np.append(self.words(sentence, rare), self.vocab.eos)
        rows = [0] * len(sentence) if tags is None else [number[tag] + 1 for tag in tags]
        return ids + size * np.array([*rows, 1])

    @property
    def tagged_counts(self) -> dict[str, int]:
        """How often each word occurs in the tagged text; words that it has not are left out."""
        counts = self.vocab.counts if self.tagged is None else self.tagged
        return {word: count for word, count in zip(self.vocab.words, counts, strict=True) if count}

    @property
    def numbers(self) -> dict[str, int]:
        return {tag: number for number, tag in enumerate(self.tags)}

    def kinds(self) -> np.ndarray:
        """The kind of each word of the vocabulary, -1 for kinds themselves, <eos> and <unk>: [V]."""
        words = self.vocab.words
        return np.array([-1 if w in (EOS, UNK) or w.startswith(KIND) else self.kind(w) for w in words])


def as_split(sentences: Sequence[np.ndarray]) -> Split:
    """Sentences of ids, one after the other."""
    ends = np.cumsum([0, *map(len, sentences)])
    return Split(np.concatenate(sentences), ends, ends[[0, -1]])
