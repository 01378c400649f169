"""Tagged sentences: file formats and named data sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from trellis.config import GIVEN, TaggedDataConfig
from trellis.corpus.read import read_lines, suffix_of
from trellis.corpus.sources import data_folder
from trellis.corpus.tagsets import convert, units_of
from trellis.errors import TrellisError
from trellis.options import choose, shown, whole

DOCUMENT_START = "-DOCSTART-"
GOLDEN = 0.6180339887498949  # its multiples modulo one are evenly distributed
CONLLU = {
    name: i for i, name in enumerate(("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"))
}
_WORDS = re.compile(r"[^ \t\n\v\f\r]+")
Token = tuple[str, str, str]  # word, tag, part of speech ("" if the format has none)
Sentence = list[Token]
Numbered = Iterable[tuple[int, str]]  # lines with their numbers, starting at 1


@dataclass(frozen=True)
class Tagged:
    """Sentences of words with their tags. If the tags are not parts of speech, the sentences may have parts of speech
    too."""

    words: list[list[str]]
    tags: list[list[str]]
    pos: list[list[str]] | None = None

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, part: slice | Sequence[int]) -> Tagged:
        """A subset of the sentences."""
        places = range(len(self))[part] if isinstance(part, slice) else part
        words, tags, pos = (rows and [rows[i] for i in places] for rows in (self.words, self.tags, self.pos))
        return Tagged(words or [], tags or [], pos)

    def __add__(self, other: Tagged) -> Tagged:
        pos = self.pos + other.pos if self.pos is not None and other.pos is not None else None
        return Tagged(self.words + other.words, self.tags + other.tags, pos)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.words))

    def tag_set(self) -> list[str]:
        return sorted(set(chain.from_iterable(self.tags)))

    def map_tags(self, change: Callable[[list[str]], list[str]]) -> Tagged:
        """The same words with the tags of each sentence mapped by `change`."""
        return Tagged(self.words, [change(tags) for tags in self.tags], self.pos)

    def in_iob2(self) -> Tagged:
        """Convert span tags to IOB2; other tags are unchanged."""
        return self.map_tags(lambda tags: convert(tags, "IOB2")) if units_of(self.tag_set()) == "spans" else self


def read_tagged(path: str | Path, format: str | None = None, column: int | str | None = None) -> Tagged:
    """Read tagged sentences from a file, plain or .gz. The default format is conllu for .conllu files, else conll.

    - conll: columns, with the word in the first, and blank lines between sentences. `column` is the tag column
      (default: the last). If it is not the second column, the second is kept as `pos`.
    - conllu: `column` is "upos" (default) or "xpos".
    - medpost: for each sentence, a line with an id, then a line of word_TAG tokens.
    - word_tag: one sentence of word_TAG tokens per line."""
    format = format or format_of(path) or "conll"
    read = choose(FORMATS, format, "The format of tagged text")
    columns: tuple[list[list[str]], ...] = ([], [], [])
    words, tags, pos = columns
    for sentence in read(Path(path), column):
        for values, part in zip(columns, zip(*sentence, strict=True), strict=False):
            values.append([intern(value) for value in part])
    if not words:
        raise TrellisError(f"{path} contains no tagged sentences in the {format} format.")
    return Tagged(words, tags, pos if pos[0][0] else None)


def format_of(path: str | Path) -> str | None:
    """The format that the suffix of a file implies, or None."""
    return "conllu" if suffix_of(Path(path)) == ".conllu" else None


def split_words(line: str) -> list[str]:
    """The words of a line, separated by ASCII white space; a word may contain other spaces, such as no-break spaces."""
    return _WORDS.findall(line)


def _broken(path: Path, number: int, what: str) -> TrellisError:
    return TrellisError(f"{path}, line {number}: {what}.")


def _numbered(path: Path) -> Numbered:
    return enumerate(read_lines(path), 1)


def _sentences(rows: Iterable[list[str] | None], token: Callable[[list[str]], Token]) -> Iterator[Sentence]:
    """Group rows of columns into sentences; None separates sentences."""
    sentence: Sentence = []
    for row in rows:
        if row is not None:
            sentence.append(token(row))
        elif sentence:
            yield sentence
            sentence = []
    yield sentence


def _conll(path: Path, column: int | str | None) -> Iterator[Sentence]:
    place = -1 if column is None else _whole(column)

    def rows() -> Iterator[list[str] | None]:
        width = 0
        for number, line in _numbered(path):
            row = line.split("\t") if "\t" in line else split_words(line)
            if not line.strip() or row[0] == DOCUMENT_START:
                yield None
                continue
            width = width or len(row)
            if len(row) != width or not -width < place < width or width < 2:
                wanted = max(width, 2, place + 1)
                raise _broken(path, number, f"{len(row)} columns, expected at least {wanted}: {line.strip()[:60]!r}")
            if not row[0].strip() or not row[place].strip():
                raise _broken(path, number, f"empty word or tag: {line.rstrip()[:60]!r}")
            yield row

    def token(row: list[str]) -> Token:
        return row[0], row[place], "" if place % len(row) == 1 else row[1]

    return _sentences(rows(), token)


def _whole(column: int | str) -> int:
    if whole(str(column).removeprefix("-")) is None:
        raise TrellisError(f"The column {shown(column)} is not an integer; conll columns are numbered from 0.")
    return int(column)


def _conllu(path: Path, column: int | str | None) -> Iterator[Sentence]:
    name = "upos" if column is None else str(column).lower()
    place = choose(CONLLU, name, "The column of the conllu format")

    def rows() -> Iterator[list[str] | None]:
        for number, line in _numbered(path):
            row = line.rstrip("\n").split("\t")
            if not line.strip():
                yield None
            elif line.startswith("#"):
                continue
            elif len(row) != len(CONLLU):
                raise _broken(path, number, f"{len(row)} columns, expected {len(CONLLU)}: {line.strip()[:60]!r}")
            elif row[0].isdecimal() and not (row[CONLLU["form"]].strip() and row[place].strip()):
                raise _broken(path, number, f"empty word or {name}: {line.strip()[:60]!r}")
            elif row[0].isdecimal():  # neither a multiword range nor an empty node
                yield row
            elif not row[0].replace("-", "").replace(".", "").isdecimal():
                raise _broken(path, number, f"{row[0]!r} is not a word index")

    return _sentences(rows(), lambda row: (row[CONLLU["form"]], row[place], ""))


def _medpost(path: Path, column: int | str | None) -> Iterator[Sentence]:
    lines = [(number, line) for number, line in _numbered(path) if line.strip()]
    for (number, name), (next_number, line) in zip(lines[::2], lines[1::2], strict=False):
        if "_" in name or len(split_words(name)) != 1:
            raise _broken(path, number, f"expected a sentence id, found {name.strip()[:60]!r}")
        yield _joined(path, next_number, line)
    if len(lines) % 2:
        raise _broken(path, lines[-1][0], "sentence id without a sentence")


def _word_tag(path: Path, column: int | str | None) -> Iterator[Sentence]:
    return (_joined(path, number, line) for number, line in _numbered(path) if line.strip())


def _joined(path: Path, number: int, line: str) -> Sentence:
    """Split the tokens word_TAG of a line at the last underscore."""
    tokens = split_words(line)
    pairs = [token.rpartition("_") for token in tokens]
    for token, (word, _, tag) in zip(tokens, pairs, strict=True):
        if not word or not tag:
            raise _broken(path, number, f"{token[:60]!r} is not in the form word_TAG")
    return [(word, tag, "") for word, _, tag in pairs]


FORMATS: dict[str, Callable[[Path, int | str | None], Iterator[Sentence]]] = {
    "conll": _conll,
    "conllu": _conllu,
    "medpost": _medpost,
    "word_tag": _word_tag,
}


@dataclass(frozen=True)
class TaggedSource:
    """A data set in a folder of $TRELLIS_DATA: the files of each split, and which of their sentences belong to the data
    set."""

    folder: str
    format: str
    files: Mapping[str, Sequence[str]]
    column: int | str | None = None
    parts: Mapping[str, slice] | None = None  # slices of sentences, if the splits share files
    without: str = ""  # a tag whose tokens are dropped


_EWT = {"train": ("en_ewt-ud-train.conllu",), "valid": ("en_ewt-ud-dev.conllu",), "test": ("en_ewt-ud-test.conllu",)}
_MEDPOST = {
    "train": ("tag_cl.ioc", "tag_mb.ioc", "tag_mb01.ioc", "tag_mb02.ioc", "tag_mb03.ioc"),
    "valid": tuple(f"tag_mb{i:02}.ioc" for i in range(4, 11)),
    "test": ("tag_ml01.ioc",),
}
_CONLL2000 = {"train": ("train.txt",), "test": ("test.txt",)}
_CONLL2003 = {"train": ("eng.train",), "valid": ("eng.testa",), "test": ("eng.testb",)}
_SAMPLE = dict.fromkeys(("train", "valid", "test"), ("treebank.tsv",))
_SAMPLE_PARTS = {"train": slice(0, 3131), "valid": slice(3131, 3523), "test": slice(3523, None)}  # 80, 10 and 10 %
TAGGED = {
    "conll2000": TaggedSource("conll2000", "conll", _CONLL2000),
    "conll2000-pos": TaggedSource("conll2000", "conll", _CONLL2000, 1),
    "conll2003": TaggedSource("conll2003", "conll", _CONLL2003),
    "conll2003-pos": TaggedSource("conll2003", "conll", _CONLL2003, 1),
    "ud_ewt": TaggedSource("ud_ewt", "conllu", _EWT),
    "ud_ewt-xpos": TaggedSource("ud_ewt", "conllu", _EWT, "xpos"),
    "genia": TaggedSource(
        "genia", "conll", {"train": ("train.tsv", "future_use.tsv"), "valid": ("dev.tsv",), "test": ("test.tsv",)}
    ),
    "medpost": TaggedSource("medpost", "medpost", _MEDPOST),
    "treebank_sample": TaggedSource("treebank_sample", "conll", _SAMPLE, parts=_SAMPLE_PARTS, without="-NONE-"),
}


def load_tagged(name: str, split: str) -> Tagged:
    """Load a split (train, valid or test) of a data set under $TRELLIS_DATA; CoNLL-2000 has no valid split."""
    source = choose(TAGGED, name, "The tagged data set")
    if split not in source.files:
        raise TrellisError(f"{name} has no {split} split; it has {', '.join(source.files)}.")
    files = [_plain_or_packed(data_folder(source.folder) / file) for file in source.files[split]]
    data = reduce(add, (read_tagged(file, source.format, source.column) for file in files))
    return _without(data if source.parts is None else data[source.parts[split]], source.without)


def read_splits(config: TaggedDataConfig, data: Any = None) -> dict[str, Tagged]:
    """The splits of a tagged data set, with spans in IOB2. For a single file, or sentences [[(word, tag), ...], ...]
    from Python, some sentences are held out."""
    if isinstance(data, Tagged):
        return _held_out(data, config)
    if data is not None:
        try:
            pairs = [[(str(word), str(tag)) for word, tag in sentence] for sentence in data]
        except (TypeError, ValueError) as error:
            raise TrellisError("Tagged text from Python is a list of sentences of (word, tag) pairs.") from error
        return _held_out(Tagged(*([[pair[i] for pair in row] for row in pairs] for i in range(2))), config)
    if not config.source or config.source.startswith(GIVEN):
        raise TrellisError(f"No tagged text given: set data.source to a file or to one of {', '.join(TAGGED)}.")
    if config.source in TAGGED and config.reader is None:
        return {name: load_tagged(config.source, name).in_iob2() for name in TAGGED[config.source].files}
    return _held_out(read_tagged(config.source, config.reader, config.column), config)


def _held_out(data: Tagged, config: TaggedDataConfig) -> dict[str, Tagged]:
    """Hold out evenly spread sentences for validation and testing; a split without sentences is omitted."""
    data, place = data.in_iob2(), (np.arange(1, len(data) + 1) * GOLDEN) % 1.0  # evenly spread in [0, 1)
    ends = config.valid_fraction, config.valid_fraction + config.test_fraction
    chosen = {"train": place >= ends[1], "valid": place < ends[0], "test": (place >= ends[0]) & (place < ends[1])}
    found = {name: data[np.flatnonzero(mask).tolist()] for name, mask in chosen.items() if mask.any()}
    if "train" not in found:
        raise TrellisError("There are no tagged sentences to train on; pass more, or hold out fewer.")
    return found


def describe_splits(config: TaggedDataConfig, splits: Mapping[str, Tagged]) -> str:
    """Source and sizes in one line."""
    origin = f"{sum(map(len, splits.values())):,} sentences" if config.source.startswith(GIVEN) else config.source
    sizes = " / ".join(f"{split.num_tokens:,}" for split in splits.values())
    return f"{origin}: {sizes} tokens ({' / '.join(splits)})"


def _plain_or_packed(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    if not path.is_file() and not packed.is_file():
        raise TrellisError(f"Cannot find {path} (or .gz); set TRELLIS_DATA to the folder that contains the data sets.")
    return path if path.is_file() else packed


def _without(data: Tagged, tag: str) -> Tagged:
    """Drop the tokens with a tag, and the sentences left empty."""
    if not tag:
        return data
    sentences = (zip(*pair, strict=True) for pair in zip(data.words, data.tags, strict=True))
    kept = [row for sentence in sentences if (row := [(w, t) for w, t in sentence if t != tag])]
    return Tagged([[w for w, _ in sentence] for sentence in kept], [[t for _, t in sentence] for sentence in kept])
