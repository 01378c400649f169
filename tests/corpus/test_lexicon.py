"""Words, kinds and tags as integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trellis.corpus.lexicon import Lexicon, as_split, kinds_of
from trellis.errors import TrellisError

SENTENCES = [["the", "dog", "barking"], ["the", "cat", "mewing"], ["a", "dog", "Bob", "the", "dog"]]
TAGS = [["D", "N", "V"], ["D", "N", "V"], ["D", "N", "P", "D", "N"]]


def lexicon(**choices) -> Lexicon:
    return Lexicon.choose(SENTENCES, TAGS, **({"rare": 1, "common": 2} | choices))


@given(st.text(min_size=1), st.booleans())
def test_kinds_grow_wider(word: str, first: bool) -> None:
    kinds = kinds_of(word, first)
    assert len(set(kinds)) == len(kinds)
    assert kinds[-1].endswith(":>")
    marks = {kind.partition(":")[0] for kind in kinds}
    assert len(marks) == 1


def test_the_end_of_a_kind_is_that_of_the_word() -> None:
    assert kinds_of("barking")[:2] == ["<kind a:king>", "<kind a:ing>"]
    assert kinds_of("B-52s")[0] == "<kind 9-A:-52s>"
    assert kinds_of("Bob") == ["<kind A:ob>", "<kind A:b>", "<kind A:>"]
    assert kinds_of("Bob", first=True)[-1] == "<kind A^:>"


@pytest.mark.parametrize(
    ("word", "marks"),
    [("B2", "9AC"), ("b-", "-a"), ("a@b", "@a"), ("www", "@a"), ("http:", "@a"), ("?", "."), ("A", "A"), ("AB", "AC"),
     ("aB", ""), ("..", "."), ("a.", "a")],
)  # fmt: skip
def test_the_marks_of_a_kind(word: str, marks: str) -> None:
    assert kinds_of(word)[-1] == f"<kind {marks}:>"


def test_every_word_is_known_and_kinds_that_rare_words_share() -> None:
    chosen = lexicon()
    assert chosen.tags == ["<eos>", "D", "N", "P", "V"]
    kinds = {word for word in chosen.vocab.words if word.startswith("<kind")}
    assert {word for sentence in SENTENCES for word in sentence} | {"<eos>", "<unk>"} | kinds == set(chosen.vocab.words)
    assert kinds == {"<kind a:ing>", "<kind a:ng>", "<kind a:g>", "<kind a:>"}


def test_kinds_are_counted_over_rare_words_and_places() -> None:
    text = [["Ab", "often"], ["Bb", "Cb"], ["Db", "often", "Eb"], ["Fb", "often"], ["Gb", "Gb"]]
    kinds = {word for word in Lexicon.choose(text, text, rare=2, common=3).vocab.words if word.startswith("<kind")}
    assert kinds == {"<kind A^:b>", "<kind A^:>", "<kind A:b>", "<kind A:>"}
    chosen = Lexicon.choose(text, text, rare=1, common=2).vocab
    counts = dict(zip(chosen.words, chosen.counts, strict=True))
    assert {word: count for word, count in counts.items() if word.startswith("<kind")} == {
        "<kind A^:b>": 4, "<kind A^:>": 4, "<kind A:b>": 2, "<kind A:>": 2
    }  # fmt: skip
    assert counts["<eos>"] == 5


def test_unknown_and_rare_words_are_their_kinds() -> None:
    chosen = lexicon()

    def names(rare: int) -> list[str]:
        return chosen.vocab.decode(chosen.words(["the", "barking", "singing", "Rex"], rare))

    assert names(0) == ["the", "barking", "<kind a:ing>", "<unk>"]
    assert names(1) == ["the", "<kind a:ing>", "<kind a:ing>", "<unk>"]


def test_the_commonest_word_is_itself() -> None:
    chosen = Lexicon.choose([["the"] * 5], [["D"] * 5])
    assert chosen.words(["the"]).tolist() == [0]
    assert chosen.vocab.words[0] == "the"


def test_capitals_that_come_from_the_place_of_a_word() -> None:
    chosen = lexicon()
    assert chosen.vocab.decode(chosen.words(["Dog", "DOG", "Dog"])) == ["dog", "dog", "<unk>"]


def test_a_symbol_is_a_word_with_its_tag() -> None:
    chosen = lexicon()
    size = len(chosen.vocab)
    symbols = chosen.symbols(["the", "dog"], ["D", "N"])
    assert chosen.vocab.decode(symbols % size) == ["the", "dog", "<eos>"]
    assert [chosen.tags[tag - 1] for tag in symbols // size] == ["D", "N", "<eos>"]
    assert (chosen.symbols(["the", "dog"]) // size).tolist() == [0, 0, 1]
    assert chosen.vocab.decode(chosen.symbols(["barking"]) % size) == ["barking", "<eos>"]  # rare, but itself
    with pytest.raises(TrellisError, match="Unknown tag 'X'"):
        chosen.symbols(["the"], ["X"])
    with pytest.raises(TrellisError, match="empty"):
        chosen.symbols([])


def test_counts_are_of_words_alone() -> None:
    chosen = lexicon()
    assert chosen.tagged_counts == {"the": 3, "dog": 3, "a": 1, "barking": 1, "cat": 1, "mewing": 1, "Bob": 1}


def test_words_of_untagged_text() -> None:
    """Without `Once`, only seen first in a sentence; `cats`, seen once; and `The` and `DOG`, known in lower case."""
    untagged = [["Once", "singing", "mice", "The", "DOG"], ["Once", "mice", "singing", "The", "DOG", "mice", "cats"]]
    before, after = lexicon(), lexicon().with_words(untagged, 2)
    size = len(before.vocab)
    assert after.vocab.words == [*before.vocab.words, "mice", "singing"]
    assert after.vocab.counts == [*before.vocab.counts, 0, 0]
    assert (after.tags, after.tagged_counts) == (before.tags, before.tagged_counts)
    sentence = ["Mice", "singing", "The", "barking", "Once"]
    assert after.vocab.decode(after.words(sentence)) == ["mice", "singing", "<unk>", "barking", "<unk>"]
    for rare in (0, 1):
        assert after.words(sentence, rare).tolist() == before.words(sentence, rare).tolist()
    assert [after.vocab.words[kind] for kind in after.kinds()[size:]] == ["<kind a:>", "<kind a:ing>"]
    assert set(lexicon().with_words(untagged, 1).vocab.words[size:]) == {"mice", "singing", "cats"}


def test_the_kind_of_every_word() -> None:
    chosen = lexicon()
    kinds = dict(zip(chosen.vocab.words, chosen.kinds().tolist(), strict=True))
    assert chosen.vocab.words[kinds["barking"]] == "<kind a:ing>"
    assert kinds["<kind a:g>"] == kinds["<eos>"] == kinds["<unk>"] == -1


def test_sentences_one_after_the_other() -> None:
    split = as_split([np.array([1, 2]), np.array([3])])
    assert split.tokens.tolist() == [1, 2, 3]
    assert split.sentences.tolist() == [0, 2, 3]
    assert split.documents.tolist() == [0, 3]
