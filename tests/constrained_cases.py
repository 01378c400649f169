"""Constraints over the words a, b, c, each with a predicate on sequences of their ids; 3 is <eos>."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import trellis
from trellis.constraints import (
    Constraint,
    all_of,
    anything,
    banned,
    begins,
    contains,
    ends,
    exactly,
    length,
    one_of,
    ordered,
    positions,
    regex,
    table,
    template,
    tokens,
)

WORDS = ["a", "b", "c", "<eos>"]
VOCAB = trellis.Vocabulary(WORDS, [1] * 4)
END = 3


def count(row: Sequence[int], *phrase: int) -> int:
    return sum(tuple(row[i : i + len(phrase)]) == phrase for i in range(len(row)))


def in_order(row: Sequence[int]) -> bool:
    return any(row[i] == 0 and row[j : j + 2] == (1, 0) for i in range(len(row)) for j in range(i + 1, len(row)))


def text_like(pattern: str) -> Callable[[tuple[int, ...]], bool]:
    return lambda row: re.fullmatch(pattern, " ".join(WORDS[i] for i in row)) is not None


DESCRIBED: dict[str, tuple[Constraint, Callable[[tuple[int, ...]], bool]]] = {
    "anything": (anything(), lambda row: True),
    "a word": (contains("a"), lambda row: count(row, 0) > 0),
    "a phrase": (contains("a b"), lambda row: count(row, 0, 1) > 0),
    "a phrase that overlaps itself": (contains("a a", 2), lambda row: count(row, 0, 0) >= 2),
    "a phrase with a border": (contains("a b a", 2), lambda row: count(row, 0, 1, 0) >= 2),
    "at most": (contains("b", 1, 2), lambda row: 1 <= count(row, 1) <= 2),
    "never": (contains("b", 0, 0), lambda row: count(row, 1) == 0),
    "banned": (banned("a b"), lambda row: count(row, 0, 1) == 0),
    "all of": (all_of("a", "b a", "c"), lambda row: min(count(row, 0), count(row, 1, 0), count(row, 2)) > 0),
    "in order": (ordered("a", "b a"), in_order),
    "begins": (begins("a b"), lambda row: row[:2] == (0, 1)),
    "ends": (ends("a b"), lambda row: row[-2:] == (0, 1)),
    "exactly": (exactly("a b"), lambda row: row == (0, 1)),
    "one of": (one_of(["a", "a b c", "b", ""]), lambda row: row in [(0,), (0, 1, 2), (1,), ()]),
    "length": (length(2, 3), lambda row: 2 <= len(row) <= 3),
    "at least": (length(2), lambda row: len(row) >= 2),
    "positions": (
        positions([["a", "b"], None, lambda word: word > "a"]),
        lambda row: len(row) == 3 and row[0] in (0, 1) and row[1] != END and row[2] in (1, 2),
    ),
    "a template": (
        template("a ___{1,2} b ___"),
        lambda row: 4 <= len(row) <= 5 and row[0] == 0 and row[-2] == 1 and END not in row,
    ),
    "an open template": (template("___{2,} a"), lambda row: len(row) > 2 and row[-1] == 0 and END not in row),
    "tokens": (
        tokens("(a | b c)* [^a] .{0,2} b?"),
        lambda row: re.fullmatch("(?:a|bc)*[bc][abc]{0,2}b?", "".join("abc\n"[i] for i in row)) is not None,
    ),
    "either": (contains("a b") | length(0, 1), lambda row: count(row, 0, 1) > 0 or len(row) <= 1),
    "both": (contains("a") & length(2, 4) & ~ends("c"), lambda row: 0 in row and 2 <= len(row) <= 4 and row[-1] != 2),
    "not": (~(begins("a") | ends("b")), lambda row: not (row[:1] == (0,) or row[-1:] == (1,))),
    "one after the other": (
        contains("a") + tokens("b c*"),
        lambda row: any(0 in row[:i] and text_like("b( c)*")(row[i:]) for i in range(len(row))),
    ),
    "a table": (
        table({"s": {"a": "t", None: "s"}, "t": {"a": "t", "b": "s"}}, "s", ["t"]),
        lambda row: row[-1:] == (0,) and not any(x == 0 and y > 1 for x, y in pairwise(row)),
    ),
    "text": (regex("a( [^c])*"), lambda row: END not in row and text_like("a( [^c])*")(row)),
}  # fmt: skip
CASES = {name: constraint for name, (constraint, _) in DESCRIBED.items()}
