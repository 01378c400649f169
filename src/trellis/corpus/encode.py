"""Encode text as integer arrays on disk, without holding the corpus in memory.

The text is tokenised once into provisional ids, numbered by first appearance. From these the splits and the vocabulary
are determined; a lookup table then maps provisional ids to final ones.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from trellis.corpus.read import Report, read_texts
from trellis.corpus.recipe import Recipe
from trellis.corpus.sources import SPLITS, WHOLE, Source
from trellis.corpus.tokenize import DOCUMENT, EOS, LINE, TOKENIZERS, treat
from trellis.corpus.vocab import Vocabulary
from trellis.errors import TrellisError

CHUNK = 1 << 22  # tokens in memory at a time
TOKEN, OFFSET = np.dtype("<i4"), np.dtype("<i8")
PROVISIONAL = {EOS: 0, LINE: 0, DOCUMENT: 2}  # each value except LINE's is its index in the table


class Split(NamedTuple):
    """One split as a stream of ids; sentence i is `tokens[sentences[i]:sentences[i + 1]]`, likewise for documents."""

    tokens: np.ndarray  # [n] int32
    sentences: np.ndarray  # [sentences + 1] int64 offsets into tokens
    documents: np.ndarray  # [documents + 1] int64 offsets into tokens


class Part(NamedTuple):
    """The location of a split in a provisional stream."""

    stream: Split
    ranges: list[tuple[int, int]]  # half-open ranges of token positions
    documents: np.ndarray  # offsets [documents + 1] into the concatenated ranges


def encode_corpus(
    source: Source, recipe: Recipe, folder: Path, workshop: Path, report: Report, known: Vocabulary | None = None
) -> Vocabulary:
    """Write `<split>.tokens`, `.sentences` and `.documents` into `folder` and return the vocabulary.

    The vocabulary is `known` if given, otherwise chosen from the training split; `workshop` is a scratch folder.
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
        parts = _divide(streams[WHOLE], recipe)
    else:
        parts = {name: _contiguous(stream, 0, stream.tokens.size) for name, stream in streams.items()}
    if recipe.min_letters:
        parts["train"] = _mostly_letters(parts["train"], table, recipe.min_letters)
    for name, part in parts.items():
        if not any((chunk != PROVISIONAL[EOS]).any() for chunk in _chunks(part)):
            raise TrellisError(f"There are no words in the {name} split of {source.description}.")
    vocab = known or _choose_vocabulary(parts["train"], table, recipe)
    lookup = _final_ids(table, vocab)
    for name, part in parts.items():
        _check_known(part, lookup, list(table), name)
        _write_split(part, lookup, vocab.eos, folder / name)
    return vocab


def encode_sentences(
    sentences: Iterable[Sequence[str]], recipe: Recipe, known: Vocabulary | None = None
) -> tuple[Vocabulary, dict[str, Split]]:
    """Encode tokenised sentences in memory; each sentence is its own document."""
    table: defaultdict[str, int] = defaultdict(None, PROVISIONAL)
    table.default_factory = table.__len__
    rows = [[*(table[treat(word, recipe.lower, recipe.digits)] for word in row), table[EOS]] for row in sentences]
    starts = np.cumsum([0, *map(len, rows)], dtype=OFFSET)
    stream = Split(np.fromiter(chain.from_iterable(rows), TOKEN, int(starts[-1])), starts, starts)
    parts = _divide(stream, recipe)
    vocab = known or _choose_vocabulary(parts["train"], table, recipe)
    lookup = _final_ids(table, vocab)
    for name, part in parts.items():
        _check_known(part, lookup, list(table), name)
    return vocab, {name: _in_memory(part, lookup, vocab.eos) for name, part in parts.items()}


def _in_memory(part: Part, lookup: np.ndarray, eos: int) -> Split:
    """A part as a Split with final ids; every split ends with <eos>."""
    ending = np.array([PROVISIONAL[EOS]] if _lacks_end(part) else [], TOKEN)
    tokens = lookup[np.concatenate([*_chunks(part), ending])]
    documents = part.documents.copy()
    documents[-1] = tokens.size
    return Split(tokens, np.append(0, 1 + np.flatnonzero(tokens == eos)), documents)


def open_split(path: Path) -> Split:
    """Memory-map the arrays written as `path`.tokens, .sentences and .documents."""
    tokens, sentences, documents = (path.with_suffix(f".{field}") for field in Split._fields)
    return Split(_open(tokens, TOKEN), _open(sentences, OFFSET), _open(documents, OFFSET))


def _open(path: Path, dtype: np.dtype) -> np.ndarray:
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


def _number_tokens(texts: Iterable[str], recipe: Recipe, table: defaultdict[str, int], path: Path) -> Split:
    """Tokenise the texts and number the tokens, adding new ones to `table`."""
    split, number = TOKENIZERS[recipe.tokenizer].split, table.__getitem__
    with _writers(path) as (tokens, sentences, documents):
        total = 0
        sentences.write(bytes(OFFSET.itemsize))
        for text in texts:
            words = split(treat(text, recipe.lower, recipe.digits))
            ids = np.fromiter(map(number, words), TOKEN, len(words))
            starts = np.flatnonzero(ids == table[DOCUMENT])
            if starts.size:
                (total + starts - np.arange(starts.size)).astype(OFFSET).tofile(documents)
                ids = np.delete(ids, starts)
            ids.tofile(tokens)
            (total + 1 + np.flatnonzero(ids == table[EOS])).astype(OFFSET).tofile(sentences)
            total += ids.size
    stream = open_split(path)
    return stream._replace(documents=np.unique(np.append(stream.documents, total)))


def _divide(stream: Split, recipe: Recipe) -> dict[str, Part]:
    """Assign documents to splits by a fixed shuffle; if there are fewer than three, divide sentences or tokens."""
    valid, test = recipe.valid_fraction, recipe.test_fraction
    shares = {name: share for name, share in zip(SPLITS, (1 - valid - test, valid, test), strict=True) if share > 0}
    if stream.documents.size > len(shares):
        order, ends = _shuffled(stream.documents.size - 1), _ends(stream.documents.size - 1, [*shares.values()])
        chosen = zip(shares, np.split(order, ends[:-1]), strict=True)
        return {name: _selected(stream, np.sort(documents)) for name, documents in chosen}
    if stream.sentences.size > len(shares):
        ends = stream.sentences[_ends(stream.sentences.size - 1, [*shares.values()])].tolist()
    else:
        ends = _ends(stream.tokens.size, [*shares.values()])
    return {name: _contiguous(stream, *bounds) for name, bounds in zip(shares, pairwise([0, *ends]), strict=True)}


def _ends(units: int, shares: list[float]) -> list[int]:
    """The end offset of each share of the units; held-out shares come last, each with at least one unit."""
    held_out = [max(1, round(units * share)) for share in shares[1:]]
    return np.cumsum([max(units - sum(held_out), 0), *held_out]).tolist()


def _shuffled(size: int) -> np.ndarray:
    """A fixed, platform-independent permutation: 0 ... size - 1 sorted by their splitmix64 hashes."""
    x = (np.arange(size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(x ^ (x >> np.uint64(31)), kind="stable")


def _contiguous(stream: Split, start: int, stop: int) -> Part:
    documents = np.unique(np.clip(stream.documents, start, stop)) - start
    return Part(stream, [(start, stop)], documents)


def _selected(stream: Split, documents: np.ndarray) -> Part:
    """Some whole documents in their original order; adjacent ones are joined into one range."""
    runs = np.split(documents, np.flatnonzero(np.diff(documents) > 1) + 1)
    ranges = [(int(stream.documents[run[0]]), int(stream.documents[run[-1] + 1])) for run in runs]
    lengths = np.diff(stream.documents)[documents]
    return Part(stream, ranges, np.append(0, np.cumsum(lengths)))


def _mostly_letters(part: Part, table: dict[str, int], share: float) -> Part:
    """The sentences in which at least this share of the characters are letters a-z; adjacent ones form one range."""
    stream, ends = part.stream, np.asarray(part.stream.sentences)
    words = ["" if word in PROVISIONAL else word for word in table]
    sizes = np.array([(len(word), sum("a" <= letter <= "z" for letter in word)) for word in words])
    characters, letters = (np.add.reduceat(size[stream.tokens], ends[:-1]) for size in sizes.T)
    starts, stops = np.array(part.ranges).T
    place = np.searchsorted(starts, ends[:-1], side="right") - 1
    kept = (place >= 0) & (ends[1:] <= stops[place]) & (letters >= share * np.maximum(characters, 1))
    edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)).reshape(-1, 2)
    before = np.append(0, np.cumsum(np.diff(ends) * kept))
    documents = np.unique(before[np.searchsorted(ends, stream.documents)])
    return Part(stream, [(int(ends[first]), int(ends[last])) for first, last in edges], documents)


def _chunks(part: Part) -> Iterator[np.ndarray]:
    for start, stop in part.ranges:
        for position in range(start, stop, CHUNK):
            yield np.asarray(part.stream.tokens[position : min(position + CHUNK, stop)])


def _choose_vocabulary(train: Part, table: dict[str, int], recipe: Recipe) -> Vocabulary:
    counts = np.zeros(len(table), np.int64)
    for chunk in _chunks(train):
        counts += np.bincount(chunk, minlength=len(table))
    counts[table[EOS]] += _lacks_end(train)
    seen = {word: count for word, count in zip(table, counts.tolist(), strict=True) if count}
    treatment = recipe.tokenizer, recipe.lower, recipe.digits
    return Vocabulary.choose(seen, recipe.min_count, recipe.max_size, recipe.unk, *treatment)


def _final_ids(table: dict[str, int], vocab: Vocabulary) -> np.ndarray:
    """Map provisional to final ids [len(table)]; -1 for words outside the vocabulary."""
    missing = -1 if vocab.unk is None else vocab.unk
    return np.fromiter((vocab.index.get(word, missing) for word in table), TOKEN, len(table))


def _lacks_end(part: Part) -> bool:
    """Whether the part ends in the middle of a sentence, because a single sentence was divided."""
    return bool(part.ranges and part.stream.tokens[part.ranges[-1][1] - 1] != PROVISIONAL[EOS])


def _check_known(part: Part, lookup: np.ndarray, words: list[str], name: str) -> None:
    """Raise on a word that is out of vocabulary when there is no <unk>."""
    seen = 0
    for chunk in _chunks(part):
        unknown = np.flatnonzero(lookup[chunk] < 0)
        if unknown.size:
            raise TrellisError(
                f"The word {words[chunk[unknown[0]]]!r}, token {seen + unknown[0] + 1:,} of the {name} split, is not "
                "in the vocabulary, which has no <unk>; set data.unk = true, or keep every word."
            )
        seen += chunk.size


def _write_split(part: Part, lookup: np.ndarray, eos: int, path: Path) -> None:
    """Write a part with final ids; every split ends with <eos>."""
    ending = np.array([PROVISIONAL[EOS]] if _lacks_end(part) else [], TOKEN)
    part.documents[-1] += ending.size
    with _writers(path) as (tokens, sentences, documents):
        total = 0
        sentences.write(bytes(OFFSET.itemsize))
        for chunk in chain(_chunks(part), [ending]):
            ids = lookup[chunk]
            ids.tofile(tokens)
            (total + 1 + np.flatnonzero(ids == eos)).astype(OFFSET).tofile(sentences)
            total += ids.size
        part.documents.astype(OFFSET).tofile(documents)


@contextmanager
def _writers(path: Path) -> Iterator[list[IO[bytes]]]:
    """Open files for the three arrays of a split, flushed to disk when the block exits."""
    files: list[IO[bytes]] = [path.with_suffix(f".{field}").open("wb") for field in Split._fields]
    try:
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files:
            file.close()
