"""Regular expressions over characters against Python's `re`, and the sentences that refuse what is not supported."""

from __future__ import annotations

import re
import warnings
from itertools import product

import pytest
from hypothesis import example, given, settings, strategies as st

from constrained_cases import VOCAB
from trellis.constraints import Alphabet, regex, tokens
from trellis.errors import TrellisError

SYMBOLS = ["a", "b", "\n"]
LONGEST = 5
many = settings(max_examples=150, deadline=None, derandomize=True)


def differences(pattern: str, symbols: list[str], longest: int) -> list[str]:
    """The texts of some symbols on which the automaton of a pattern and `re` disagree."""
    automaton = regex(pattern).build(Alphabet(symbols, None, lambda text: [], "".join))
    expected = re.compile(pattern)
    rows = [row for n in range(longest + 1) for row in product(range(len(symbols)), repeat=n)]
    texts = {row: "".join(symbols[i] for i in row) for row in rows}
    return [text for row, text in texts.items() if automaton.accepts(row) != (expected.fullmatch(text) is not None)]


ANCHORED = st.recursive(
    st.sampled_from(["a", "b", ".", "[^a]", r"\s", "", "^", "$", r"\A", r"\Z", "(?#c)", "a+?", "b{2}?", "a??"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{2,}", "+?", "{1,2}?"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
    ),
    max_leaves=10,
)


@many
@given(ANCHORED)
@example("^a.*$|^b.*$")
@example("^a.*|^b.*")
@example("(^a|b)b")
@example("(^a$)")
@example("a$$")
@example("(^|a)*b($|a)*")
@example("a$\n$")
@example("(a|^){2,}b")
def test_anchors_hold_where_they_do_in_python(pattern: str) -> None:
    assert differences(pattern, SYMBOLS, LONGEST) == []


@pytest.mark.parametrize(
    ("pattern", "accepted"),
    [
        ("^a .*$|^b .*$", ["a b", "a c", "b c", "b a c"]),
        ("(^b|a) (c|b)", ["a b", "a c", "b c"]),
        ("(^a b$)|c", ["a b", "c"]),
        ("a b$$", ["a b"]),
        ("a$ b|a ^b", []),
    ],
)
def test_anchored_sentences(pattern: str, accepted: list[str]) -> None:
    automaton, sentences = regex(pattern).build(Alphabet.of_vocabulary(VOCAB)), ["a b", "a c", "b c", "b a c", "c"]
    assert [text for text in sentences if automaton.accepts(VOCAB.encode(text.split()).tolist())] == accepted


PIECES = ["a", "b", *"()[]{}|*+?^$\\.-:=!<>#P1,2", "(?", "(?:", "{1,2}", r"\A", r"\b", "(?#", r"\012", r"\x61", "[^"]


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), max_size=7).map("".join))
@example("(?#a\\)b)a")
@example(r"[^\]a]\N{LATIN SMALL LETTER A}\U00000061")
@example("a]}")
def test_any_pattern_is_read_as_in_python_or_refused(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sets that may change their meaning
        try:
            regex(pattern).build(Alphabet(["a"], None, lambda text: [], "".join))
        except TrellisError:
            return
        assert differences(pattern, ["a", "b", "\n", "]", "{"], 2) == []


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        (r"\bab", "word boundaries are not supported"),
        (r"a\B", "word boundaries are not supported"),
        ("(?=a)b", "lookahead and lookbehind are not supported"),
        ("(?<!a)b", "lookahead and lookbehind are not supported"),
        (r"(a)\1", "backreferences are not supported"),
        ("(?P=x)", "backreferences are not supported"),
        ("(?P<x>a)", "named groups are not supported"),
        ("(?i)a", "flags are not supported"),
        ("(?i:a)", "flags are not supported"),
        ("(?-i:a)", "flags are not supported"),
        ("(?>a)", "atomic groups are not supported"),
        ("(a)(?(1)a|b)", "conditional groups are not supported"),
        ("a(?#b", "the comment is not closed"),
        ("(?!a", "lookahead and lookbehind are not supported"),
        ("(?~a)", "no such group exists"),
        (".*+a", "possessive repetitions are not supported"),
        ("a++", "possessive repetitions are not supported"),
        ("a?+", "possessive repetitions are not supported"),
        ("a{2}+", "possessive repetitions are not supported"),
        ("a**", "repeats a repetition"),
        ("a{2}{3}", "repeats a repetition"),
        ("a+??", "repeats a repetition"),
        ("^*a", "repeats nothing"),
        ("a[b", "the set is not closed"),
        ("a{b", "this is not a repetition"),
        ("a\\", "the backslash is not followed by a character"),
    ],
)
def test_what_is_not_supported_is_named(pattern: str, sentence: str) -> None:
    with pytest.raises(TrellisError, match=rf"^(Cannot read the pattern .* on: |The pattern .* ){sentence}.*\.$"):
        regex(pattern).compile(VOCAB)


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("[a b", "the set is not closed"),
        ("a b]", "no set is open"),
        ("a{b}", "this is not a repetition"),
        ("a}", "no repetition is open"),
        ("a\\", "the backslash is not followed by a character"),
        ("a+?", "repeats a repetition"),
    ],
)
def test_what_is_wrong_with_a_pattern_of_tokens(pattern: str, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        tokens(pattern).compile(VOCAB)
