"""The text that each token of a tokenizer of `transformers` adds to a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from trellis.errors import TrellisError

BROKEN = "\ufffd"  # stands for bytes that are not UTF-8
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that byte-level tokens show as they are
BYTES = {chr(byte): byte for byte in PRINTED}
BYTES |= {chr(0x100 + n): byte for n, byte in enumerate(byte for byte in range(0x100) if byte not in PRINTED)}
STRAY = b"\xc3", b"\xa9", b"\xe2"  # a character, and a byte that does not belong to one
PROBE = "naïve café ☃ 𝄞, isn't  it"


class Pieces(NamedTuple):
    """What each token adds to a text."""

    texts: list[str]
    utf8: list[bytes]
    split: bool  # whether some tokens are parts of characters
    joined: bool  # whether a text is what each of its tokens adds, one after another
    replaces: bool  # whether bytes that are not UTF-8 are decoded as by Python, whatever is next to them


def pieces_of(tokenizer: Any) -> Pieces:
    """The text and the bytes of each token: what it adds to the text of another token."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    before = encode(tokenizer, "a")
    start = decode(before)

    def added(ids: Sequence[int]) -> str | None:
        text = decode([*before, *ids])
        return text[len(start) :] if text.startswith(start) else None

    found = [added([i]) for i in range(len(tokenizer))]
    texts = ["" if text is None else text for text in found]
    broken = [i for i, text in enumerate(texts) if BROKEN in text]
    utf8 = [text.encode("utf-8", "replace") for text in texts]
    for i in broken:
        utf8[i] = bytes_of(tokenizer.convert_ids_to_tokens(i), texts[i])
    whole = [i for i, text in enumerate(texts) if BROKEN not in text]
    same = all(added(ids) == text_of(utf8, ids) for ids in (whole, whole[::-1], encode(tokenizer, PROBE)))
    same = same and None not in found and all(text_of(utf8, [i]) == texts[i] for i in broken)
    single = {utf8[i]: i for i in broken}
    stray = [single[byte] for byte in STRAY if byte in single]
    return Pieces(texts, utf8, bool(broken), same, len(stray) < len(STRAY) or added(stray) == text_of(utf8, stray))


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def phrase(tokenizer: Any, utf8: Sequence[bytes], text: str) -> list[int]:
    """The tokens of a part of a text. Some tokenizers put a space before every text, which a part that begins with a
    space must not get."""
    found = encode(tokenizer, text)
    without = encode(tokenizer, text.removeprefix(" "))
    return next((ids for ids in (found, without) if text_of(utf8, ids) == text), found)


def text_of(utf8: Sequence[bytes], ids: Sequence[int]) -> str:
    return b"".join(utf8[i] for i in ids).decode("utf-8", "replace")


def bytes_of(token: str, text: str) -> bytes:
    """The bytes of a token that is called `token` and decoded as `text`."""
    if match := BYTE.fullmatch(token):
        return bytes([int(match[1], 16)])
    if all(character in BYTES for character in token):
        return bytes(BYTES[character] for character in token)
    return text.encode("utf-8", "replace")


def refuse(texts: Sequence[str]) -> NoReturn:
    """Raises: the text of these tokens is unknown."""
    raise TrellisError(
        "The text of a token of this tokenizer depends on the tokens next to it, so texts cannot be matched; use  "
        "constraints on tokens instead of regular expressions."
    )
