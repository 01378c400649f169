"""Regular expressions for headings: which are refused because their search could take exponential time."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, strategies as st

from trellis.corpus.headings import compile_heading
from trellis.errors import TrellisError


@pytest.mark.parametrize(
    ("heading", "texts"),
    [
        (r"^(?:\d+\.)+$", {"1.": True, "12.3.": True, "1..": False}),
        (r"^((\d)+\.)+$", {"12.3.": True, "1..": False}),
        (r"^(?:\d{1,2}\.){2,3}$", {"1.22.": True, "1.": False}),
        (r"^(?:[IVX]+ )*$", {"IV X ": True, "IV": False}),
        (r"^(?:(?:ab|ac)d?,)+$", {"ab,acd,": True, "ad,": False}),
        (r"^(?:[^,\n]*,)+$", {"a b,": True, ",,": True, "a": False}),
        (r"^(?:[^\W\d]+\d)+$", {"a1bc2": True, "1a": False}),
        (r"^(?:[^a]+?a)+$", {"bba": True, "aa": False}),
        (r"^(?:[b-d]+e|[f-h]+a)+$", {"bce": True, "ea": False}),
        (r"^(?:a|ab)+$", {"aab": True, "b": False}),
        (r"^(?:a?b|c)+$", {"abbc": True, "ac": False}),
        (r"^(?:\S\s+){3}$", {"a b  c ": True, "ab": False}),
        (r"^(?:ab|b)+$", {"babb": True, "a": False}),
    ],
)
def test_a_heading_may_repeat_what_the_next_character_decides(heading: str, texts: dict[str, bool]) -> None:
    found = compile_heading(heading)
    assert {text: bool(found.search(text)) for text in texts} == texts


@pytest.mark.parametrize(
    "heading",
    [
        "(?:a+)+", "(?:a*)*", "(?:a?b?)+", "(?:a|ab|b)*", r"(?:\w+\d?)+", r"(?:\d+|\w-)+", r"(?:\D+|x-)+",
        "(?:a{1,2}){2}", "(?:[b-d]+c)+", "(?:[^b]+c)+", "(?:.?x)+", r"(?:\s+ )+", r"(?:\W+,)+", r"(?:\S*-)+",
        "(?:a(?:b|bc)c*)+", "(?:a??a)+", "(?:(?:ab)*)*", "(?:(?:a|b)?a)+", "(?i)(?:a+A)+", "(?i)(?:a+b)+",
        "(?:(?i:a)+A)+", r"(b)(?:a+\1)+", "(?:(?=a)a+b)+", "(?:" + "a?" * 101 + "b)+", "(?:é+[à-ü])+", r"(?:[^b]+\0)+",
        r"(?:^a+b|\D+1)+", "(?:a?){24}", "(?:a|){24}b", "(?:(?:a|b)?){20}c", "(?:x(?:a??){24}c)+",
        "(?:a+ab)+", "(?:ab+b)+",
    ],
)  # fmt: skip
def test_headings_that_may_take_exponential_time_are_refused(heading: str) -> None:
    with pytest.raises(TrellisError, match="repeats a group"):
        compile_heading(heading)


@given(st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join), st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map("(?:{0[0]}){0[1]}".format),
    ),
    max_leaves=6,
))  # fmt: skip
def test_accepted_headings_match_in_one_way(body: str) -> None:
    """Split points are the only choice: an accepted loop divides no text into iterations in two ways."""
    try:
        compile_heading(f"(?:{body})+")
    except TrellisError:
        return
    one = re.compile(body)
    for text in ("".join(letters) for n in range(1, 7) for letters in product("ab", repeat=n)):
        ways = [1] + [0] * len(text)
        for end in range(1, len(text) + 1):
            ways[end] = sum(ways[begin] for begin in range(end) if one.fullmatch(text, begin, end))
        assert ways[-1] <= 1, text
