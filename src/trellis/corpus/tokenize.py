"""Tokenise and detokenise text. A newline ends a sentence and DOCUMENT begins a document; both are tokens."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

EOS, UNK = "<eos>", "<unk>"
LINE, DOCUMENT = "\n", "\ud800"  # a lone surrogate: no file contains it

_WORD = re.compile(r"\n|<unk>|\w+(?:['’]\w+)*|[^\w\s]")
_SYMBOL = re.compile(r"\n|\S")
_CHARACTER = re.compile(r".", re.DOTALL)
_BLANKS = re.compile(r"\S+")
_DIGITS = re.compile(r"\d+")
_SPACE_BEFORE = re.compile(r" ([.,;:!?%)\]}])")
_SPACE_AFTER = re.compile(r"([(\[{]) ")


class Tokenizer(NamedTuple):
    """Functions that split text into tokens (a sentence ends with "\\n" or <eos>) and join tokens into text."""

    split: Callable[[str], list[str]]
    join: Callable[[Iterable[str]], str]
    piece: re.Pattern[str]  # matches the pieces of a line, each of which is one token or, for bytes, several
    min_count: int = 1  # default of data.min_count: 2 if rare tokens are read as <unk>, to train its probability
    exact: bool = False  # whether tokens keep the text as it is: blanks, blank lines, and all bytes of a file


def _split_whitespace(text: str) -> list[str]:
    return text.replace(LINE, f" {EOS} ").replace(DOCUMENT, f" {DOCUMENT} ").split()


def _split_bytes(text: str) -> list[str]:
    """Split a text into its UTF-8 bytes, each represented by the character with this code point."""
    first, *rest = [part.encode("utf-8", "surrogateescape").decode("latin-1") for part in text.split(DOCUMENT)]
    return [*first, *(token for part in rest for token in (DOCUMENT, *part))]


def _join_bytes(tokens: Iterable[str]) -> str:
    """Join byte tokens; other tokens, such as <unk>, are written as they are."""
    return "".join(tokens).encode("latin-1", "replace").decode("utf-8", "replace")


def _join_words(tokens: Iterable[str]) -> str:
    return _SPACE_AFTER.sub(r"\1", _SPACE_BEFORE.sub(r"\1", " ".join(tokens)))


TOKENIZERS = {
    "whitespace": Tokenizer(_split_whitespace, " ".join, _BLANKS, min_count=2),
    "words": Tokenizer(_WORD.findall, _join_words, _WORD, min_count=2),
    "characters": Tokenizer(list, "".join, _CHARACTER, exact=True),
    "bytes": Tokenizer(_split_bytes, _join_bytes, _CHARACTER, exact=True),
    "symbols": Tokenizer(_SYMBOL.findall, "".join, _SYMBOL),
}


def treat(text: str, lower: bool, digits: bool) -> str:
    """Optionally lower-case the text, then optionally replace each run of digits by N."""
    text = text.lower() if lower else text
    return _DIGITS.sub("N", text) if digits else text
