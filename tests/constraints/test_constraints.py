"""Automata against predicates on all short sequences of tokens, and Python's `re` on their text."""

from __future__ import annotations

import operator
import re
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import trellis
from constrained_cases import CASES, DESCRIBED, END, VOCAB, WORDS, text_like
from trellis.constraints import (
    Alphabet,
    Automaton,
    Constraint,
    all_of,
    anything,
    banned,
    begins,
    contains,
    ends,
    exactly,
    from_fsm,
    length,
    one_of,
    ordered,
    positions,
    regex,
    table,
    template,
    tokens,
)  # fmt: skip
from trellis.constraints.automaton import distances, minimised
from trellis.constraints.constraint import checked
from trellis.constraints.constructors import Matcher
from trellis.errors import TrellisError

LONGEST = 5
SEQUENCES = [row for n in range(LONGEST + 1) for row in product(range(4), repeat=n)]
examples = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("name", CASES)
def test_an_automaton_accepts_what_its_constraint_describes(name: str) -> None:
    constraint, predicate = DESCRIBED[name]
    automaton = constraint.compile(VOCAB)
    assert [row for row in SEQUENCES if automaton.accepts(row)] == [row for row in SEQUENCES if predicate(row)]
    again = minimised(automaton)
    assert all(np.array_equal(one, other) for one, other in zip(automaton, again, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_no_two_states_and_no_two_classes_are_equivalent(name: str) -> None:
    automaton = CASES[name].compile(VOCAB)
    futures = {tuple(bool(automaton.accepting[automaton.read(row, s)]) for row in SEQUENCES)
               for s in range(len(automaton.moves))}  # fmt: skip
    assert len(futures) == len(automaton.moves)
    assert len({tuple(column) for column in automaton.moves.T}) == automaton.moves.shape[1]


def random_automaton(seed: int, states: int, size: int = 4) -> Automaton:
    draw = np.random.default_rng(seed)
    moves = draw.integers(states, size=(states, size))
    return Automaton(moves, draw.random(states) < 0.4, np.arange(size))


automata = st.builds(random_automaton, st.integers(0, 2**31), st.integers(1, 6))


@examples
@given(automata, automata)
def test_operations_on_random_automata(one: Automaton, other: Automaton) -> None:
    left, right = (Constraint("given", lambda _, a=a: a) for a in (one, other))
    built = {"&": left & right, "|": left | right, "~": ~left, "+": left + right, "=": left}
    alphabet = Alphabet.of_vocabulary(VOCAB)
    found = {name: minimised(constraint.build(alphabet)) for name, constraint in built.items()}
    for row in SEQUENCES[:341]:
        a, b = one.accepts(row), other.accepts(row)
        split = any(one.accepts(row[:i]) and other.accepts(row[i:]) for i in range(len(row) + 1))
        expected = {"&": a and b, "|": a or b, "~": not a, "+": split, "=": a}
        assert {name: automaton.accepts(row) for name, automaton in found.items()} == expected


PIECES = st.sampled_from(["a", "b", "c", " ", ".", "[ab ]", "[^a]", r"\w", r"\s", "ab"])
PATTERNS = st.recursive(
    PIECES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{1,}", "{0,1}"])).map(
            lambda p: f"({p[0]}){p[1]}"
        ),
    ),
    max_leaves=6,
)


@examples
@given(PATTERNS)
def test_regular_expressions_match_as_in_python(pattern: str) -> None:
    automaton = regex(pattern).build(Alphabet.of_vocabulary(VOCAB))
    for row in SEQUENCES:
        if END not in row:
            assert automaton.accepts(row) == text_like(pattern)(row), (pattern, row)


SYMBOLS = ["a", "b", ",", "(", ")", "it's", "<eos>", "<unk>"]


@pytest.mark.parametrize("tokenizer", ["words", "whitespace", "characters", "symbols"])
def test_the_text_is_that_of_the_tokenizer(tokenizer: str) -> None:
    vocab = trellis.Vocabulary(SYMBOLS, [1] * 8, tokenizer)
    for pattern in (r"a.*b", r"[^ ]*", r".*\(a\).*", r"it's, .*", r".{3,5}", "a b"):
        automaton = regex(pattern).build(Alphabet.of_vocabulary(vocab))
        for row in (row for n in range(4) for row in product(range(6), repeat=n)):
            text = vocab.join(vocab.decode(row))
            assert automaton.accepts(row) == (re.fullmatch(pattern, text) is not None), (pattern, text)


def test_an_automaton_of_interegular() -> None:
    interegular = pytest.importorskip("interegular", reason="interegular is not installed")
    machine = interegular.parse_pattern("a( [ab])*").to_fsm()
    theirs, ours = from_fsm(machine).compile(VOCAB), regex("a( [ab])*").compile(VOCAB)
    assert all(np.array_equal(one, other) for one, other in zip(theirs, ours, strict=True))


class Machine:
    """An automaton over characters, in the form of interegular's: "a" once or more, separated by spaces."""

    alphabet = {"a": 0, " ": 1, "b": 2, "c": 2, "\n": 2}  # noqa: RUF012
    map = {0: {0: 1}, 1: {1: 0}}  # noqa: RUF012
    initial, finals = 0, {1}


def test_an_automaton_over_characters_from_outside() -> None:
    automaton = from_fsm(Machine).compile(VOCAB)
    assert [row for row in SEQUENCES if automaton.accepts(row)] == [(0,) * n for n in range(1, LONGEST + 1)]


def test_characters_that_the_alphabet_of_an_automaton_lacks_have_no_edges() -> None:
    class Smaller(Machine):
        alphabet = {"a": 0, " ": 1}  # noqa: RUF012

    automaton = from_fsm(Smaller).compile(VOCAB)
    assert [row for row in SEQUENCES if automaton.accepts(row)] == [(0,) * n for n in range(1, LONGEST + 1)]


def test_any_other_character_of_interegular() -> None:
    interegular = pytest.importorskip("interegular", reason="interegular is not installed")
    for pattern in ("a( .)*", "[^b]*", "a( a)*"):  # no pattern contains the letter c
        theirs, ours = (
            from_fsm(interegular.parse_pattern(pattern).to_fsm()).compile(VOCAB),
            regex(pattern).compile(VOCAB),
        )
        for row in SEQUENCES:
            assert theirs.accepts(row) == ours.accepts(row), (pattern, row)


def test_ids_without_words() -> None:
    automaton = contains("7 2").compile(Alphabet.of_ids(10))
    assert automaton.accepts([1, 7, 2])
    assert not automaton.accepts([7, 1, 2])
    with pytest.raises(TrellisError, match="not an id from 0 to 9"):
        contains("10").compile(Alphabet.of_ids(10))


def test_large_vocabularies_have_few_classes() -> None:
    vocab = trellis.Vocabulary(["<eos>", *(f"w{n}" for n in range(30_000))], [1] * 30_001)
    automaton = (contains("w5 w6") & banned("w7") & length(3, 9)).compile(vocab)
    assert automaton.moves.shape[1] == 4
    assert regex("w1.* w2[0-9]*").compile(vocab).moves.shape[1] == 4  # w1..., w2..., other words, <eos>


@pytest.mark.parametrize(
    ("constraint", "sentence"),
    [
        (contains("a") & contains("a zebra"), r"The word 'zebra' is not among .* \(constraint: contains 'a zebra'\)\."),
        (contains("a") & length(2) & banned("a"), "not 'a', together with contains 'a'"),
        (length(0, 1) & contains("a") & contains("b"), "contains 'b', together with 0 to 1 words and contains 'a'"),
        (contains("a") & regex("z"), "No sentence satisfies the constraint: text matches 'z'"),
        (regex("a("), "is not closed"),
        (regex("a)"), "closes a parenthesis"),
        (regex("*a"), "repeats nothing"),
        (tokens("a{3,2}"), r"The repetition \{3,2\}"),
        (regex("(a{100}){200}"), "more than 10,000 symbols"),
        (regex("(a?){9999}"), "too complex"),
        (regex("(" * 3000 + "a" + ")" * 3000), "nested too deeply"),
        (regex("(" * 3000 + "a" + ")*" * 3000), "nested too deeply"),
        (reduce(Constraint.__or__, [contains("a")] * 3000), "nested too deeply"),
        (contains(""), "empty phrase"),
        (template("a ____ b"), "A gap is three underscores"),
        (positions([lambda word: word == "z"]), "satisfies the constraint: 1 word, among those allowed"),
        (positions([None, []]), "satisfies the constraint: 2 words, each among those allowed"),
    ],
)
def test_what_is_wrong_is_named(constraint: Constraint, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        constraint.compile(VOCAB)


@pytest.mark.parametrize("tokenizer", ["words", "characters", "bytes", "symbols"])
def test_the_end_is_not_a_word(tokenizer: str) -> None:
    vocab = trellis.Vocabulary(["a", "<eos>"], [1] * 2, tokenizer)
    with pytest.raises(TrellisError, match=r"^<eos> is the end of a sentence, not one of its words; .* \(constraint"):
        contains("a<eos>").compile(vocab)
    with pytest.raises(TrellisError, match=r"^The word 'b' is not among the 2 words"):
        contains("b").compile(vocab)


@pytest.mark.parametrize("pattern", ["(){999999999}", "a(?:(){0,99999999}){5,}", "(()*)+a"])
def test_repetitions_of_nothing(pattern: str) -> None:
    ours, wanted = regex(pattern).compile(VOCAB), regex("a" if "a" in pattern else "").compile(VOCAB)
    assert all(np.array_equal(one, other) for one, other in zip(ours, wanted, strict=True))


@examples
@given(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.lists(st.integers(0, 2), max_size=12))
def test_the_longest_prefix_just_read(phrase: list[int], text: list[int]) -> None:
    matcher, state = Matcher(phrase), 0
    for n, token in enumerate(text, 1):
        state = matcher.step(state, token)
        read = text[:n]
        assert state == max(k for k in range(min(n, len(phrase)) + 1) if read[n - k :] == phrase[:k])


def test_a_long_periodic_phrase_has_short_fallbacks() -> None:
    assert max(Matcher([0] * 10_000 + [1]).fallback[:10_000]) == 0


def test_states_of_long_phrases_are_told_apart_by_their_distances() -> None:
    chain = length(0, 5000).build(Alphabet.of_vocabulary(VOCAB))  # would take 5000 rounds of Moore's algorithm
    assert len(chain.moves) == 5002
    assert len(np.unique(distances(chain.moves, ~chain.accepting))) == 5002


@examples
@given(automata)
def test_distances(one: Automaton) -> None:
    found = distances(one.moves, one.accepting)
    assert ((found == 0) == one.accepting).all()
    assert (found[~one.accepting] == 1 + found[one.moves[~one.accepting]].min(1)).all()


def test_impossible_bounds() -> None:
    with pytest.raises(TrellisError, match="from 3 to 2 words"):
        length(3, 2)
    with pytest.raises(TrellisError, match="cannot have -1 or more words"):
        length(-1)
    for bounds in ((2, 1), (1.5, 2), (-1, 2)):
        with pytest.raises(TrellisError, match=f"between {bounds[0]} and {bounds[1]} times"):
            contains("a", *bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [contains, banned, begins, ends, exactly, all_of, ordered, template, tokens, regex])
@pytest.mark.parametrize("value", [None, 5, ["a"]])
def test_text_is_a_string(make: Any, value: Any) -> None:
    with pytest.raises(TrellisError, match="is made of text, not of"):
        make(value)


def test_arguments_of_the_wrong_kind() -> None:
    with pytest.raises(TrellisError, match="one_of takes a list of sentences"):
        one_of("a b")
    with pytest.raises(TrellisError, match="one_of takes a list of sentences"):
        one_of(5)  # type: ignore[arg-type]
    for allowed in (5, [["a"], 5], [["a", 5]]):
        with pytest.raises(TrellisError, match=r"\b5\b"):
            positions(allowed)  # type: ignore[arg-type]
    with pytest.raises(TrellisError, match="more than 20,000 states"):
        length(0, 10**13)
    with pytest.raises(TrellisError, match="The edges of an automaton are"):
        table({"s": {"a": "t"}}, ["s"], ["t"])
    with pytest.raises(TrellisError, match="is made of text"):
        table({"s": {("a",): "t"}}, "s", ["t"]).compile(VOCAB)
    assert table({0: {np.int64(1): 1}}, 0, [1]).compile(VOCAB).accepts([1])
    for edges in (["s"], {"s": ["a"]}, {"s": {"a": ["t"]}}):
        with pytest.raises(TrellisError, match="The edges of an automaton are"):
            table(edges, "s", ["t"])  # type: ignore[arg-type]
    with pytest.raises(TrellisError, match="An automaton has the attributes initial"):
        from_fsm("a")
    with pytest.raises(TypeError, match="unsupported operand"):
        contains("a") & "b"  # type: ignore[operator]
    with pytest.raises(TrellisError, match="A constraint is needed"):
        checked("a b")


def test_a_word_of_a_position_and_no_phrases() -> None:
    for ours, wanted in ((positions(["a", "b"]), exactly("a b")), (all_of(), anything())):
        one, other = ours.compile(VOCAB), wanted.compile(VOCAB)
        assert [row for row in SEQUENCES if one.accepts(row)] == [row for row in SEQUENCES if other.accepts(row)]


def test_the_edges_of_an_automaton_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text has the edges of every state, and takes time in proportion to their number."""
    automaton, calls = reduce(operator.and_, map(contains, "abc")).compile(VOCAB), list[int]()
    listed = automaton.edges()
    monkeypatch.setattr(Automaton, "edges", lambda self: calls.append(1) or listed)
    lines = automaton.text(WORDS).split("\n")
    assert [line for line in lines if not line.startswith(" ")][:2] == ["0 (start)", "1"]
    assert sum(line.startswith("  -> ") for line in lines) == len(listed) > 8
    assert calls == [1]


def test_an_automaton_as_text() -> None:
    shown = contains("a b").compile(VOCAB).text(WORDS)
    assert shown.splitlines() == [
        "0 (start)", "  -> 0  b, c, <eos>", "  -> 1  a",
        "1", "  -> 0  c, <eos>", "  -> 1  a", "  -> 2  b",
        "2 (accepting)", "  -> 2  any token",
    ]  # fmt: skip


@pytest.mark.parametrize("classes", [200, 256])
def test_distances_with_many_parallel_edges(classes: int) -> None:
    moves = np.repeat([[1], [2], [2], [3]], classes, 1)
    assert distances(moves, np.arange(4) == 2).tolist() == [2, 1, 0, np.inf]
