"""ARPA files, the exchange format of n-gram models: log10 probabilities and backoffs of every n-gram, as text.

<eos> is written as <s> at the beginning of an n-gram and as </s> at its end. If contexts cross sentence boundaries, it
also occurs in the middle; it is then written as <eos>, and <s> and </s> are words that never occur.
Errors in a file are reported with their line number.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from trellis.corpus import Vocabulary
from trellis.corpus.tokenize import EOS
from trellis.errors import TrellisError
from trellis.families.ngram.model import NGram
from trellis.families.ngram.trie import Trie
from trellis.models.base import Saved
from trellis.storage import atomic_write

BEGIN, END, NEVER = "<s>", "</s>", -99.0
SEPARATORS = frozenset(" \t\n\r\v\f\0")
LN10 = math.log(10)
ANNOUNCED = re.compile(rb"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})")


def write_arpa(model: NGram, path: Path) -> None:
    """Write the model, gzipped if the name ends in .gz."""
    for word in model.vocab.words:
        if word in ("", BEGIN, END) or SEPARATORS & set(word):
            raise TrellisError(f"An ARPA file cannot represent the word {word!r}; train on a text without it.")
    with atomic_write(path) as plain, gzip.open(plain, "wb") if path.suffix == ".gz" else plain as file:
        file.write(b"\\data\\\n")
        for k, size in enumerate(model.trie.sizes, 1):
            file.write(b"ngram %d=%d\n" % (k, size + (k == 1) * (1 + model.cross_sentences)))
        for k, lines in enumerate(sections(model), 1):
            file.write(b"\n\\%d-grams:\n" % k)
            file.writelines(line.encode() for line in lines)
        file.write(b"\n\\end\\\n")


def sections(model: NGram) -> Iterator[Iterable[str]]:
    """For each order, the lines of its section."""
    trie, eos, names = model.trie, model.vocab.eos, list(model.vocab.words)
    log_probs, backoffs = (model.log_probs / LN10).tolist(), (model.backoffs / LN10).tolist()
    backoffs += [0.0] * trie.sizes[-1]
    texts, never = names.copy(), {BEGIN: 0.0, END: 0.0}
    if not model.cross_sentences:
        names[eos], texts[eos], never = END, BEGIN, {BEGIN: backoffs[eos]}
        backoffs[eos] = 0.0
    for k, (begin, end) in enumerate(pairwise(trie.bounds), 1):
        line = "{:.9g}\t{}\n" if k == model.order else "{:.9g}\t{}\t{:.9g}\n"
        if k == 1:
            extra = (line.format(NEVER, name, backoff) for name, backoff in never.items())
            yield chain(map(line.format, log_probs[:end], names, backoffs[:end]), extra)
            continue
        parents, words = trie.level(k)
        places = (parents - trie.bounds[k - 2]).tolist()
        texts = [f"{texts[place]} {names[word]}" for place, word in zip(places, words.tolist(), strict=True)]
        yield map(line.format, log_probs[begin:end], texts, backoffs[begin:end])


class Level(NamedTuple):
    """The n-grams of one order, as a file lists them."""

    words: np.ndarray  # [N, k], numbered as in the file's 1-grams
    log_probs: np.ndarray  # [N], base 10
    backoffs: np.ndarray  # [N], base 10
    lines: np.ndarray  # [N], line numbers

    def take(self, which: np.ndarray) -> Level:
        return Level(*(field[which] for field in self))


class Reader:
    """The non-blank lines of a file, one by one."""

    def __init__(self, path: Path, lines: Iterable[bytes]) -> None:
        self.path, self.lines, self.number, self.line = path, iter(lines), 0, b""

    def advance(self) -> bytes:
        for line in self.lines:
            self.number += 1
            self.line = line.strip()
            if self.line:
                return self.line
        raise self.error("the file ends without \\end\\: it is truncated, or not an ARPA file.")

    def expect(self, line: str) -> None:
        if self.line != line.encode():
            raise self.error(f"expected {line}, found {text(self.line)!r}.")

    def refuse(self, level: Level, where: np.ndarray, sentence: str) -> None:
        """Raise an error about the first n-gram of a level for which the mask `where` is true."""
        if where.any():
            raise self.error(sentence, int(level.lines[np.argmax(where)]))

    def error(self, sentence: str, number: int | None = None) -> TrellisError:
        return TrellisError(f"{self.path}, line {number or self.number}: {sentence}")


def read_arpa(path: Path) -> NGram:
    """Read a model from an ARPA file, plain or gzipped; words are separated by whitespace."""
    with opened(path) as reader:
        sizes = read_sizes(reader)
        index: defaultdict[bytes, int] = defaultdict()
        index.default_factory = index.__len__
        level = read_level(reader, 1, sizes[0], index)
        index.default_factory = None
        words = Words.of(reader, level, list(index))
        trie, levels = Trie.of_words(len(words.vocab)), [words.level]
        for k, size in enumerate(sizes[1:], 2):
            level = read_level(reader, k, size, index)
            keys = find_keys(reader, trie, words, level)
            order = np.argsort(keys, kind="stable")
            again = np.zeros(size, bool)
            again[order[1:]] = np.diff(keys[order]) == 0
            reader.refuse(level, again, "duplicate n-gram.")
            trie = trie.grow(torch.from_numpy(keys[order]))
            levels.append(level.take(order))
        reader.expect("\\end\\")
        for _ in reader.lines:
            pass  # read to the end to verify the gzip checksum
    log_probs = np.concatenate([level.log_probs for level in levels]) * LN10
    backoffs = np.concatenate([np.empty(0), *(level.backoffs for level in levels[:-1])]) * LN10
    tensors = {"keys": trie.keys, "log_probs": torch.from_numpy(log_probs), "backoffs": torch.from_numpy(backoffs)}
    settings = {"ngrams": trie.sizes, "cross_sentences": words.cross_sentences}
    return NGram.restore(Saved(words.vocab, settings, tensors))


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield Reader(path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise TrellisError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error


def read_sizes(reader: Reader) -> list[int]:
    """The number of n-grams of each order, from the header."""
    while reader.advance() != b"\\data\\":
        pass
    sizes: list[int] = []
    while reader.advance().startswith(b"ngram"):
        found = ANNOUNCED.fullmatch(reader.line)
        if not found or int(found[1]) != len(sizes) + 1:
            raise reader.error(f"expected 'ngram {len(sizes) + 1}=NUMBER', found {text(reader.line)!r}.")
        sizes.append(int(found[2]))
    if not all(sizes) or not sizes:
        raise reader.error("the header lists no n-grams, or none of some order.")
    return sizes


def read_level(reader: Reader, k: int, size: int, index: Mapping[bytes, int]) -> Level:
    """Read the section of one order."""
    reader.expect(f"\\{k}-grams:")
    words, log_probs, backoffs, lines = array("q"), array("d"), array("d"), array("q")
    while not reader.advance().startswith(b"\\"):
        fields = reader.line.split()
        if len(fields) not in (k + 1, k + 2):
            raise reader.error(f"expected a log-probability, {k} words and an optional backoff.")
        try:
            log_probs.append(float(fields[0]))
            backoffs.append(float(fields[k + 1]) if len(fields) > k + 1 else 0.0)
            words.extend([index[word] for word in fields[1 : k + 1]])
        except ValueError as error:
            raise reader.error("the log-probability or the backoff is not a number.") from error
        except KeyError as error:
            raise reader.error(f"the word {text(error.args[0])!r} is not among the 1-grams.") from error
        lines.append(reader.number)
    if len(lines) != size:
        raise reader.error(f"found {len(lines):,} {k}-grams, but the header announces {size:,}.")
    level = Level(*map(np.array, (words, log_probs, backoffs, lines)))
    reader.refuse(level, ~(level.log_probs <= 0), "a log-probability must not be above zero.")
    reader.refuse(level, ~np.isfinite(level.backoffs), "the backoff is not finite.")
    return level._replace(words=level.words.reshape(-1, k))


class Words(NamedTuple):
    """The vocabulary of a file, from its 1-grams. If <eos> is among them, it is an ordinary word; otherwise it is
    written as <s> at the beginning of an n-gram and as </s> at its end."""

    vocab: Vocabulary
    level: Level  # the vocabulary's 1-grams, in its order
    ids: np.ndarray  # [words in the file], their vocabulary ids
    begin: int  # <s> and </s> in the file; -1 if absent
    end: int
    cross_sentences: bool

    @classmethod
    def of(cls, reader: Reader, level: Level, spelled: list[bytes]) -> Words:
        reader.refuse(level, level.words[:, 0] < np.arange(len(level.words)), "duplicate word.")
        names = [text(word) for word in spelled]
        foreign = [name.encode() != word for name, word in zip(names, spelled, strict=True)]
        reader.refuse(level, np.array(foreign), "the word is not UTF-8; convert the file first.")
        cross_sentences = EOS in names
        begin, end = (names.index(name) if name in names else -1 for name in (BEGIN, END))
        if end < 0 and not cross_sentences:
            raise reader.error(f"there is no {END} among the 1-grams, so sentences cannot end.")
        dropped = {begin, end} if cross_sentences else {begin}
        kept = np.array([i for i in range(len(names)) if i not in dropped])
        ids = np.full(len(names), -1)
        ids[kept] = np.arange(len(kept))
        if not cross_sentences and begin >= 0:
            ids[begin] = ids[end]
            level.backoffs[end] = level.backoffs[begin]
        vocab = Vocabulary([EOS if i == end else names[i] for i in kept], [0] * len(kept))
        return cls(vocab, level.take(kept), ids, begin, end, cross_sentences)


def find_keys(reader: Reader, trie: Trie, words: Words, level: Level) -> np.ndarray:
    """The keys [N] with which the n-grams of one order are added to a trie of the lower orders. Raises if the trie does
    not contain their prefixes."""
    begins, ends = (level.words,) * 2 if words.cross_sentences else (level.words[:, 1:], level.words[:, :-1])
    odd = (begins == words.begin).any(1) | (ends == words.end).any(1)
    reader.refuse(level, odd, f"{BEGIN} may only begin and {END} only end an n-gram, and neither may occur with {EOS}.")
    *context, last = torch.from_numpy(words.ids[level.words].T)
    parents = context[0]
    for word in context[1:]:
        parents = trie.find(parents, word)
    reader.refuse(level, (parents < 0).numpy(), "its prefix, without the last word, is not in the file.")
    return (parents * len(words.vocab) + last).numpy()


def text(raw: bytes) -> str:
    return raw.decode(errors="replace")
