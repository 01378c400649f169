"""Regular expressions over the characters of texts whose tokens are bytes, or those of a tokenizer of `transformers`,
against Python's `re` on the decoded texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from trellis.constraints import Alphabet, contains, from_fsm, regex
from trellis.errors import TrellisError

Text = Callable[[Sequence[int]], str]
BYTES = [0x61, 0x62, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xE0, 0xED, 0xA0, 0xF4, 0x90, 0xC0, 0xFF]
PATTERNS = [
    ".*é.*", ".{3}", r"\w+", r"\W*", "[^é]*a?", "(é|€)*b", "[à-ï€]+.", "\ufffd*", "^a.*€$", "[\U00010000-\U0010ffff]*",
    "",
]  # fmt: skip


def byte_vocabulary(values: Sequence[int]) -> trellis.Vocabulary:
    return trellis.Vocabulary([*map(chr, values), "<eos>"], [1] * (len(values) + 1), "bytes")


def check(alphabet: Alphabet, pattern: str, rows: Sequence[Sequence[int]], text: Text, both: bool = True) -> None:
    """The automaton of a pattern accepts the rows whose texts match; some do and some do not if `both`."""
    automaton, expected = regex(pattern).build(alphabet), re.compile(pattern)
    wanted = [expected.fullmatch(text(row)) is not None for row in rows]
    assert [automaton.accepts(row) for row in rows] == wanted, pattern
    assert not both or set(wanted) == {True, False}, pattern


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_of_bytes(pattern: str) -> None:
    """All short sequences of bytes, and longer ones; bytes that are not UTF-8 are printed as U+FFFD."""
    vocab, draw = byte_vocabulary(BYTES), np.random.default_rng(0)
    valid = [[BYTES.index(byte) for byte in character.encode()] for character in "abé€\U0001f600"]
    rows: list[Sequence[int]] = [row for n in range(3) for row in product(range(len(BYTES)), repeat=n)]
    rows += [draw.integers(len(BYTES), size=draw.integers(3, 7)).tolist() for _ in range(2000)]
    rows += [[byte for i in draw.integers(5, size=4) for byte in valid[i]] for _ in range(500)]
    check(Alphabet.of_vocabulary(vocab), pattern, rows, lambda row: vocab.join(vocab.decode(row)))


def test_characters_of_bytes_are_counted() -> None:
    vocab = byte_vocabulary([byte for byte in range(256) if byte != ord("\n")])
    text = vocab.encode(vocab.split("the café is open")).tolist()
    assert len(text) == 17
    for pattern in (".{16}", ".*café.*", r"(\w+ ?)*"):
        assert regex(pattern).compile(vocab).accepts(text)
    assert not regex(".{17}").compile(vocab).accepts(text)
    assert (regex(".*café.*") & contains("café")).compile(vocab).accepts(text)


class Machine:
    """An automaton over characters: "é" once or more. It does not know other characters."""

    alphabet = {"é": 0, "ê": 1}  # noqa: RUF012
    map = {0: {0: 1}, 1: {0: 1}}  # noqa: RUF012
    initial, finals = 0, {1}


def test_an_automaton_over_characters_of_bytes() -> None:
    vocab = byte_vocabulary([0xC3, 0xA9, 0xAA, 0x61])
    automaton = from_fsm(Machine).compile(vocab)
    rows = [row for n in range(5) for row in product(range(4), repeat=n)]
    assert [row for row in rows if automaton.accepts(row)] == [(0, 1), (0, 1, 0, 1)]


class Tokenizer:
    """A tokenizer like those of `transformers`, which always takes the longest token. Token 0 ends a text."""

    eos_token_id = 0

    def __init__(self, tokens: list[str], written: Callable[[str], str], decoded: Callable[[list[str]], str]) -> None:
        self.tokens, self.written, self.decoded = tokens, written, decoded

    def __len__(self) -> int:
        return len(self.tokens)

    def convert_ids_to_tokens(self, i: int) -> str:
        return self.tokens[i]

    def decode(self, ids: list[int], clean_up_tokenization_spaces: bool = True) -> str:
        text = self.decoded([self.tokens[i] for i in ids])
        return text.replace(" .", ".") if clean_up_tokenization_spaces else text

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        rest, found = self.written(text), []
        while rest:
            best = max((token for token in self.tokens if rest.startswith(token)), key=len, default="")
            found += [self.tokens.index(best)] if best else []
            rest = rest[max(len(best), 1) :]
        return found


LETTERS = {"Ġ": b" ", "Ã": b"\xc3", "©": b"\xa9", "¨": b"\xa8"}


def byte_level() -> Tokenizer:
    names = {value[0]: name for name, value in LETTERS.items()}
    return Tokenizer(
        ["<end>", "a", "Ġ", "Ġ.", "Ã", "©", "ĠbÃ", "¨a"],
        lambda text: "".join(names.get(byte, chr(byte)) for byte in text.encode()),
        lambda tokens: b"".join(LETTERS.get(c, c.encode()) for c in "".join(tokens)).decode("utf-8", "replace"),
    )


def metaspace() -> Tokenizer:
    return Tokenizer(
        ["<end>", "▁a", "▁", "a", "é", "▁éb", "."],
        lambda text: "▁" * (text[:1] != " ") + text.replace(" ", "▁"),
        lambda tokens: "".join(tokens).replace("▁", " ").removeprefix(" "),
    )


def prefixed() -> Tokenizer:
    return Tokenizer(
        ["<end>", "▁a", "▁", "a", "▁▁"],
        lambda text: "▁" + text.replace(" ", "▁"),
        lambda tokens: "".join(tokens).replace("▁", " ").removeprefix(" "),
    )


def suffixed() -> Tokenizer:
    return Tokenizer(
        ["<end>", "a</w>", "a", "b</w>"],
        lambda text: text.replace(" ", "</w>") + "</w>",
        lambda tokens: "".join(tokens).replace("</w>", " ").removesuffix(" "),
    )


@pytest.mark.parametrize("make", [byte_level, metaspace])
@pytest.mark.parametrize("pattern", [" a.*", ".{3}", ".*é.*", r"(\w| )*", r".* \.", "[^é]*"])
def test_texts_of_tokenizers(make: Callable[[], Tokenizer], pattern: str) -> None:
    """A text begins after a prompt, so that the space of its first word counts."""
    tokenizer = make()
    rows = [row for n in range(5) for row in product(range(1, len(tokenizer)), repeat=n)]
    check(Alphabet.of_tokenizer(tokenizer), pattern, rows, lambda row: after_prompt(tokenizer, "a", row))


def after_prompt(tokenizer: Any, prompt: str, row: Sequence[int]) -> str:
    """The text that some tokens add to a prompt."""
    before = tokenizer.encode(prompt, add_special_tokens=False)
    text = tokenizer.decode([*before, *row], clean_up_tokenization_spaces=False)
    assert text.startswith(prompt)
    return str(text[len(prompt) :])


def test_a_phrase_has_its_own_space_only() -> None:
    tokenizer = prefixed()
    assert tokenizer.encode(" a") == [4, 3]
    assert Alphabet.of_tokenizer(tokenizer).encode(" a") == [1]


def test_tokens_without_a_text_of_their_own() -> None:
    alphabet = Alphabet.of_tokenizer(suffixed())
    assert contains("a").compile(alphabet).accepts([1])
    with pytest.raises(TrellisError, match="depends on the tokens next to it"):
        regex(" a").compile(alphabet)


def library_tokenizer(kind: str, folder: Path) -> Any:
    """A tokenizer of the package tokenizers, trained on a few words."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    models, before, after = tokenizers.models, tokenizers.pre_tokenizers, tokenizers.decoders
    special, trainers = ["</s>", "<unk>"], tokenizers.trainers
    if kind == "byte-level":
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = before.ByteLevel(add_prefix_space=False), after.ByteLevel()
        trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=before.ByteLevel.alphabet())
    elif kind == "metaspace":
        made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
        made.pre_tokenizer, made.decoder = before.Metaspace(), after.Metaspace()
        trainer = trainers.BpeTrainer(special_tokens=special)
    elif kind == "byte fallback":
        made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        made.normalizer = tokenizers.normalizers.Prepend("▁")
        made.pre_tokenizer = before.Metaspace(prepend_scheme="never")
        made.decoder = after.Sequence(
            [after.Replace("▁", " "), after.ByteFallback(), after.Fuse(), after.Strip(" ", 1, 0)]
        )
        trainer = trainers.BpeTrainer(
            special_tokens=[*special, *(f"<0x{i:02X}>" for i in range(256))], limit_alphabet=14
        )
    else:
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.pre_tokenizer, made.decoder = before.BertPreTokenizer(), after.WordPiece()
        trainer = trainers.WordPieceTrainer(special_tokens=special)
    made.train_from_iterator(["return a list of strings", "the café list of a file"] * 20, trainer)
    made.save(str(folder / "tokenizer.json"))
    file = str(folder / "tokenizer.json")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=file, eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "byte fallback", "pieces of words"])
def test_texts_of_library_tokenizers(kind: str, tmp_path: Path) -> None:
    tokenizer = library_tokenizer(kind, tmp_path)
    alphabet = Alphabet.of_tokenizer(tokenizer)
    prompt = tokenizer.encode("return", add_special_tokens=False)
    texts = ["return a list of strings", "return the café list", "return a file of a café", "return a list list"]
    rows = [tokenizer.encode(text, add_special_tokens=False)[len(prompt) :] for text in texts]
    assert [after_prompt(tokenizer, "return", row) for row in rows] == [text.removeprefix("return") for text in texts]
    assert [alphabet.encode(text.removeprefix("return")) for text in texts] == rows
    for pattern in (" a .*list.*", ".{14}", ".* café.*", r"( \w{1,4}){3}", " .*f[^é]*"):
        check(alphabet, pattern, rows, lambda row: after_prompt(tokenizer, "return", row))


@pytest.mark.parametrize("pattern", [".*é.*", ".{3}", "[^é]*"])
def test_bytes_that_are_not_text(pattern: str, tmp_path: Path) -> None:
    """This tokenizer replaces all bytes of a run if one of them is stray, so such texts are rejected."""
    tokenizer = library_tokenizer("byte fallback", tmp_path)
    alphabet = Alphabet.of_tokenizer(tokenizer)
    assert not alphabet.replaces
    single = [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in (0x61, 0xC3, 0xA9, 0xE2)]
    assert after_prompt(tokenizer, "return", single) == "\ufffd" * 4
    automaton = regex(pattern).compile(alphabet)
    for row in (row for n in range(5) for row in product(single, repeat=n)):
        text = after_prompt(tokenizer, "return", row)
        assert automaton.accepts(row) == ("\ufffd" not in text and re.fullmatch(pattern, text) is not None)
