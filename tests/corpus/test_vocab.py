"""Vocabulary and tokenizers against counting and splitting by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, strategies as st

from trellis.corpus import GAP, Vocabulary
from trellis.corpus.tokenize import DOCUMENT, TOKENIZERS, treat
from trellis.errors import TrellisError

words = st.text("abcé1", min_size=1, max_size=3)


@given(st.lists(words, min_size=1), st.integers(1, 3), st.integers(0, 6), st.booleans())
def test_the_vocabulary_is_ranked_and_its_counts_add_up(
    text: list[str], min_count: int, max_size: int, unk: bool
) -> None:
    counts = Counter([*text, "<eos>"])
    vocab = Vocabulary.choose(counts, min_count, max_size, unk)
    ranked = list(zip(vocab.words, vocab.counts, strict=True))
    assert ranked == sorted(ranked, key=lambda item: (-item[1], item[0]))
    assert vocab.words[vocab.eos] == "<eos>"
    assert (vocab.unk is not None) == unk
    if unk:
        assert sum(vocab.counts) == len(text) + 1
    candidates = sorted((-counts[word], word) for word in set(text) if counts[word] >= min_count)
    room = max(max_size - 1 - unk, 0) if max_size else len(candidates)
    assert set(vocab.words) - {"<eos>", "<unk>"} == {word for _, word in candidates[:room]}


@given(st.lists(words))
def test_known_words_survive_a_round_trip_and_a_copy(text: list[str]) -> None:
    vocab = Vocabulary.choose(Counter([*text, "<eos>"]), unk=False, tokenizer="words", lower=True)
    assert vocab.decode(vocab.encode(text)) == text
    assert Vocabulary.from_json(vocab.to_json()) == vocab


def test_unknown_words() -> None:
    with_unk = Vocabulary(["<eos>", "<unk>", "a"], [3, 2, 1])
    assert with_unk.encode(["a", "zebra"]).tolist() == [2, 1]
    without = Vocabulary(["<eos>", "a"], [3, 1])
    with pytest.raises(TrellisError, match=r"'zebra' \(number 2\)"):
        without.encode(["a", "zebra"])


@pytest.mark.parametrize(
    ("tokenizer", "text", "tokens"),
    [
        ("whitespace", " a  b.\tc\n", ["a", "b.", "c", "<eos>"]),
        ("words", "Don't (stop), <unk> __x__ 3.5\n", ["Don't", "(", "stop", ")", ",", "<unk>", "__x__", *"3.5", "\n"]),
        ("characters", "a b\n", ["a", " ", "b", "\n"]),
        ("bytes", "aé\n", ["a", "\xc3", "\xa9", "\n"]),
        ("symbols", "MK VL\n", ["M", "K", "V", "L", "\n"]),
    ],
)
def test_tokenizers(tokenizer: str, text: str, tokens: list[str]) -> None:
    assert TOKENIZERS[tokenizer].split(text) == tokens


@pytest.mark.parametrize("name", TOKENIZERS)
def test_sentence_and_document_marks_are_tokens_of_every_tokenizer(name: str) -> None:
    tokens = TOKENIZERS[name].split(f"{DOCUMENT}ab\n{DOCUMENT}\n")
    assert [token for token in tokens if token in (DOCUMENT, "\n", "<eos>")] == [
        DOCUMENT,
        *(["<eos>", DOCUMENT, "<eos>"] if name == "whitespace" else ["\n", DOCUMENT, "\n"]),
    ]


@given(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])))
def test_characters_and_bytes_join_to_the_text_again(text: str) -> None:
    for name in ("characters", "bytes"):
        assert TOKENIZERS[name].join(TOKENIZERS[name].split(text)) == text


def test_joining_words_reads_naturally() -> None:
    vocab = Vocabulary(["<eos>"], [1], tokenizer="words")
    tokens = ["see", "(", "or", "call", ")", "it", ",", "now", ".", "<eos>", "yes", "!"]
    assert vocab.join(tokens) == "see (or call) it, now.\nyes!"


def test_words_are_kept_as_they_are_by_default() -> None:
    for vocab in (Vocabulary(["A1", "<eos>"], [1, 1]), Vocabulary.choose({"A1": 1})):
        assert vocab.split("A1 b") == ["A1", "b"]
        assert (vocab.tokenizer, vocab.lower, vocab.digits) == ("whitespace", False, False)


def test_treatment_lowers_then_masks_digits() -> None:
    assert treat("In 1999 A1b22", lower=True, digits=True) == "in N aNbN"


def test_raw_text_is_treated_as_the_training_text_was() -> None:
    vocab = Vocabulary(["<eos>", "<unk>", "the", "cat", "N"], [5, 4, 3, 2, 1], "words", lower=True, digits=True)
    assert vocab.encode(vocab.split("The CAT 12")).tolist() == [2, 3, 4]
    assert vocab.encode(vocab.split("the dog")).tolist() == [2, 1]


def test_a_gap_is_one_missing_token_whatever_the_tokenizer() -> None:
    words = Vocabulary(["<eos>", "the", "sat"], [3, 2, 1])
    assert words.split(f"{GAP} the {GAP} {GAP} sat", GAP) == [GAP, "the", GAP, GAP, "sat"]
    letters = Vocabulary(["<eos>", "a", "b", " "], [4, 3, 2, 1], tokenizer="characters")
    assert letters.split(f"a{GAP} b", GAP) == ["a", GAP, " ", "b"]
    with pytest.raises(TrellisError, match="___"):
        words.encode(words.split("the ___"))


@given(st.text(), st.sampled_from([*TOKENIZERS]), st.booleans(), st.booleans())
@example("İ 12a", "words", True, True)
@example("12 34", "characters", False, True)
def test_spans_are_where_the_tokens_come_from(text: str, tokenizer: str, lower: bool, digits: bool) -> None:
    line, vocab = text.replace("\n", " ").replace("\0", " "), Vocabulary(["<eos>"], [1], tokenizer, lower, digits)
    spans, tokens = vocab.spans(line), vocab.split(line)
    if spans is None:
        assert lower or digits
        return
    assert len(spans) == len(tokens)
    assert spans == sorted(spans)
    for (start, end), token in zip(spans, tokens, strict=True):
        assert token in TOKENIZERS[tokenizer].split(treat(line[start:end], lower, digits))


def test_spans_of_every_tokenizer() -> None:
    def spans(tokenizer: str, line: str, digits: bool = False) -> list[tuple[int, int]] | None:
        return Vocabulary(["<eos>"], [1], tokenizer, True, digits).spans(line)

    assert spans("whitespace", " The  cat.") == [(1, 4), (6, 10)]
    assert spans("words", "It's 12.5", True) == [(0, 4), (5, 7), (7, 8), (8, 9)]
    assert spans("symbols", "M K") == [(0, 1), (2, 3)]
    assert spans("bytes", "é!") == [(0, 1), (0, 1), (1, 2)]
    assert spans("characters", "ab") == [(0, 1), (1, 2)]
    assert spans("characters", "a12", True) is None


def test_defaults_of_a_vocabulary() -> None:
    vocab = Vocabulary.choose({"a": 1, "B": 1, "1": 2, "<eos>": 3})
    assert vocab == Vocabulary(["<eos>", "1", "B", "a", "<unk>"], [3, 2, 1, 1, 0], "whitespace", False, False)


def test_without_ends_of_sentences_their_count_is_zero() -> None:
    assert Vocabulary.choose({"a": 2}) == Vocabulary(["a", "<eos>", "<unk>"], [2, 0, 0])
    assert Vocabulary.choose({"a": 2}, unk=False) == Vocabulary(["a", "<eos>"], [2, 0])


@pytest.mark.parametrize(
    "vocab",
    [
        Vocabulary(["a"], [1]),
        Vocabulary(["a", "a", "<eos>"], [1, 1, 1]),
        Vocabulary(["a", "<eos>"], [1]),
        Vocabulary(["a", "<eos>"], [1, 1], "letters"),
    ],
)
def test_invalid_vocabularies(vocab: Vocabulary) -> None:
    with pytest.raises(ValueError, match=r"invalid|distinct"):
        vocab.check()
    Vocabulary(["a", "<eos>"], [1, 1]).check()


@pytest.mark.parametrize("count", [-1, 1 << 63, 1.0, True])
def test_counts_are_integers_of_64_bits(count: float) -> None:
    Vocabulary(["a", "<eos>"], [0, (1 << 63) - 1]).check()
    with pytest.raises(ValueError, match="the counts of the vocabulary"):
        Vocabulary(["a", "<eos>"], [count, 1]).check()  # type: ignore[list-item]
