"""Encode text as integer arrays on disk, without holding the corpus in memory.

The text is tokenised once into provisional ids, numbered by first appearance. The splits and the vocabulary are
determined from these ids. A lookup table then maps provisional ids to final ids.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from trellis.corpus.read import Report, read_texts
from trellis.corpus.recipe import Recipe
from trellis.corpus.sources import WHOLE, Source
from trellis.corpus.splits import (
    BYTE,
    KINDS,
    OFFSET,
    PROVISIONAL,
    TOKEN,
    Part,
    Split,
    chunks,
    contiguous,
    divide,
    lacks_end,
    mostly_letters,
    open_split,
)
from trellis.corpus.tokenize import DOCUMENT, EOS, LINE, TOKENIZERS, UNK, treat
from trellis.corpus.vocab import Vocabulary
from trellis.errors import TrellisError

MOST_UNKNOWN = 0.5  # by default, words seen once are read as <unk> if they are at most this share of the tokens


class Numbering(NamedTuple):
    """The word and the final id of each provisional id."""

    words: list[str]  # by provisional id
    ids: np.ndarray  # [len(words)]; -1 for words outside a vocabulary without <unk>
    unknown: np.ndarray  # [len(words)] bool: whether the word is read as <unk>
    eos: int

    @classmethod
    def of(cls, table: dict[str, int], vocab: Vocabulary) -> Numbering:
        missing = -1 if vocab.unk is None else vocab.unk
        ids = np.fromiter((vocab.index.get(word, missing) for word in table), TOKEN, len(table))
        return cls(list(table), ids, ids == vocab.unk, vocab.eos)

    def unknown_words(self, tokens: np.ndarray) -> np.ndarray:
        """The words that are read as <unk>, in the format of `Split.unknown`."""
        words = (self.words[i].replace(LINE, " ") + LINE for i in tokens[self.unknown[tokens]])
        return np.frombuffer("".join(words).encode("utf-8", "surrogatepass"), BYTE)


def encode_corpus(
    source: Source, recipe: Recipe, folder: Path, workshop: Path, report: Report, known: Vocabulary | None = None
) -> Vocabulary:
    """Write the arrays of every split, `<split>.tokens` and so on, into `folder` and return the vocabulary.

    The vocabulary is `known` if given; otherwise it is chosen from the training split. `workshop` is a scratch folder.
    """
    table: defaultdict[str, int] = defaultdict(None, PROVISIONAL)
    table.default_factory = table.__len__
    streams = {
        name: _number_tokens(read_texts(paths, recipe, report), recipe, table, workshop / name)
        for name, paths in source.files.items()
    }
    if len(table) == len(PROVISIONAL):
        raise TrellisError(f"There are no words in {source.description}; check the file and the tokenizer.")
    if WHOLE in streams:
        parts = divide(streams[WHOLE], recipe)
    else:
        parts = {name: contiguous(stream, 0, stream.tokens.size) for name, stream in streams.items()}
    if recipe.min_letters:
        parts["train"] = mostly_letters(parts["train"], table, recipe.min_letters)
    for name, part in parts.items():
        if not any((chunk != PROVISIONAL[EOS]).any() for chunk in chunks(part)):
            raise TrellisError(
                f"There are no words in the {name} split of {source.description}; pass a longer text, or other splits."
            )
    vocab = known or _choose_vocabulary(parts["train"], table, recipe)
    numbering = Numbering.of(table, vocab)
    for name, part in parts.items():
        _check_known(part, numbering, name)
        _write_split(part, numbering, folder / name)
    return vocab


def encode_sentences(
    sentences: Iterable[Sequence[str]], sizes: Sequence[int], recipe: Recipe, known: Vocabulary | None = None
) -> tuple[Vocabulary, dict[str, Split]]:
    """Encode tokenised sentences with `sizes` characters each, in memory. Each sentence is a document."""
    table: defaultdict[str, int] = defaultdict(None, PROVISIONAL)
    table.default_factory = table.__len__
    rows = [[*(table[treat(word, recipe.lower, recipe.digits)] for word in row), table[EOS]] for row in sentences]
    starts = np.cumsum([0, *map(len, rows)], dtype=OFFSET)
    tokens = np.fromiter(chain.from_iterable(rows), TOKEN, int(starts[-1]))
    stream = Split(tokens, starts, starts, np.cumsum([0, *sizes], dtype=OFFSET))
    parts = divide(stream, recipe)
    vocab = known or _choose_vocabulary(parts["train"], table, recipe)
    numbering = Numbering.of(table, vocab)
    for name, part in parts.items():
        _check_known(part, numbering, name)
    return vocab, {name: _in_memory(part, numbering) for name, part in parts.items()}


def _in_memory(part: Part, numbering: Numbering) -> Split:
    """Convert a part to a Split with final ids. If it does not end with <eos>, one is added."""
    ending = np.array([PROVISIONAL[EOS]] if lacks_end(part) else [], TOKEN)
    given = np.concatenate([*chunks(part), ending])
    tokens, documents = numbering.ids[given], part.documents.copy()
    documents[-1] = tokens.size
    sentences = np.append(0, 1 + np.flatnonzero(tokens == numbering.eos))
    return Split(tokens, sentences, documents, _characters(part, numbering.words), numbering.unknown_words(given))


def _number_tokens(texts: Iterable[str], recipe: Recipe, table: defaultdict[str, int], path: Path) -> Split:
    """Tokenise the texts and number the tokens, adding new ones to `table`."""
    split, number = TOKENIZERS[recipe.tokenizer].split, table.__getitem__
    with _writers(path) as (tokens, sentences, documents, characters, _):
        total = read = 0
        sentences.write(bytes(OFFSET.itemsize))
        characters.write(bytes(OFFSET.itemsize))
        for text in texts:
            words = split(treat(text, recipe.lower, recipe.digits))
            ids = np.fromiter(map(number, words), TOKEN, len(words))
            starts = np.flatnonzero(ids == table[DOCUMENT])
            if starts.size:
                (total + starts - np.arange(starts.size)).astype(OFFSET).tofile(documents)
                ids = np.delete(ids, starts)
            ids.tofile(tokens)
            ends = 1 + np.flatnonzero(ids == table[EOS])
            (total + ends).astype(OFFSET).tofile(sentences)
            places, size = _line_ends(text, ends.size)
            (read + places).astype(OFFSET).tofile(characters)
            total, read = total + ids.size, read + size
        characters.seek(
            -OFFSET.itemsize, os.SEEK_END
        )  # white space at the end of the text belongs to the last sentence
        np.array([read], OFFSET).tofile(characters)
    stream = open_split(path)
    return stream._replace(documents=np.unique(np.append(stream.documents, total)))


def _line_ends(text: str, sentences: int) -> tuple[np.ndarray, int]:
    """The number of characters up to the end of each sentence, and the total. If a sentence ends within a line (at a
    literal <eos>), all sentences of this block of text share its characters equally."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    kept = codes[codes != ord(DOCUMENT)]
    ends = 1 + np.flatnonzero(kept == ord(LINE))
    return ends if ends.size == sentences else kept.size * np.arange(1, sentences + 1) // sentences, kept.size


def _choose_vocabulary(train: Part, table: dict[str, int], recipe: Recipe) -> Vocabulary:
    counts = np.zeros(len(table), np.int64)
    for chunk in chunks(train):
        counts += np.bincount(chunk, minlength=len(table))
    counts[table[EOS]] += lacks_end(train)
    seen = {word: count for word, count in zip(table, counts.tolist(), strict=True) if count}
    treatment = recipe.tokenizer, recipe.lower, recipe.digits
    min_count = default_min_count(seen, recipe) if recipe.min_count is None else recipe.min_count
    return Vocabulary.choose(seen, min_count, recipe.max_size, recipe.unk, *treatment)


def default_min_count(counts: Mapping[str, int], recipe: Recipe) -> int:
    """The default of `min_count`, which depends on the text.

    It is 2 for words, so that the probability of <unk> is estimated from words seen once. (Their share of the tokens is
    the Good-Turing estimate of the share of unseen words.) It is 1 for characters, bytes and symbols, without <unk>, if
    the text already contains <unk>, or if most tokens of a small text would be <unk>."""
    once = sum(count == 1 for word, count in counts.items() if word != EOS)
    words = sum(counts.values()) - counts.get(EOS, 0)
    usual = recipe.unk and UNK not in counts and once <= MOST_UNKNOWN * words
    return TOKENIZERS[recipe.tokenizer].min_count if usual else 1


def _characters(part: Part, words: list[str]) -> np.ndarray:
    """The offset of each sentence in the characters of a part, and the total: [sentences + 1]."""
    sentences, found = part.stream.sentences, [np.zeros(1, OFFSET)]
    for start, stop in part.ranges:
        first, last = np.searchsorted(sentences, start, side="right"), np.searchsorted(sentences, stop)
        ends = _characters_at(part.stream, np.array([start, *sentences[first:last], stop]), words)
        found.append(found[-1][-1] + ends[1:] - ends[0])
    return np.concatenate(found)


def _characters_at(stream: Split, positions: np.ndarray, words: list[str]) -> np.ndarray:
    """The number of characters before each of these token positions. The characters of a sentence are divided among its
    tokens in proportion to their lengths, with one space for each token."""
    assert stream.characters is not None
    after = np.minimum(np.searchsorted(stream.sentences, positions), stream.sentences.size - 1)
    found = np.asarray(stream.characters)[after]
    for inner in np.flatnonzero(stream.sentences[after] != positions):
        (begin, end), before = (
            stream.sentences[after[inner] - 1 : after[inner] + 1],
            stream.characters[after[inner] - 1],
        )
        sizes = np.array([1 if word == EOS else len(word) + 1 for word in words])[stream.tokens[begin:end]]
        share = sizes[: positions[inner] - begin].sum() / sizes.sum()
        found[inner] = before + round(share * float(found[inner] - before))
    return found


def _check_known(part: Part, numbering: Numbering, name: str) -> None:
    """Raise if a word is not in the vocabulary, and the vocabulary has no <unk>."""
    seen = 0
    for chunk in chunks(part):
        unknown = np.flatnonzero(numbering.ids[chunk] < 0)
        if unknown.size:
            word = numbering.words[chunk[unknown[0]]]
            raise TrellisError(
                f"The word {word!r}, token {seen + unknown[0] + 1:,} of the {name} split, is not "
                "in the vocabulary, which has no <unk>; set data.unk = true, or keep every word."
            )
        seen += chunk.size


def _write_split(part: Part, numbering: Numbering, path: Path) -> None:
    """Write a part with final ids. If it does not end with <eos>, one is added."""
    ending = np.array([PROVISIONAL[EOS]] if lacks_end(part) else [], TOKEN)
    part.documents[-1] += ending.size
    with _writers(path) as (tokens, sentences, documents, characters, unknown):
        total = 0
        sentences.write(bytes(OFFSET.itemsize))
        for chunk in chain(chunks(part), [ending]):
            ids = numbering.ids[chunk]
            ids.tofile(tokens)
            (total + 1 + np.flatnonzero(ids == numbering.eos)).astype(OFFSET).tofile(sentences)
            numbering.unknown_words(chunk).tofile(unknown)
            total += ids.size
        part.documents.astype(OFFSET).tofile(documents)
        _characters(part, numbering.words).astype(OFFSET).tofile(characters)


@contextmanager
def _writers(path: Path) -> Iterator[list[IO[bytes]]]:
    """Open files for the arrays of a split, flushed to disk when the block exits."""
    files: list[IO[bytes]] = [path.with_suffix(f".{field}").open("wb") for field in KINDS]
    try:
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files:
            file.close()
