"""Regular expressions for the headings of documents, in `re`, without those that may take exponential time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from trellis.errors import TrellisError

LONGEST = 1000  # characters of a line in which a heading is searched
CUT = "\0"  # in the place of the rest of a long line, so that its beginning is not taken for a whole line
_LONG_LINE = re.compile(rf"^[^\n]{{{LONGEST + 1},}}", re.MULTILINE)
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_CHOICE = "BRANCH"


def compile_heading(pattern: str) -> re.Pattern[str]:
    """The compiled pattern; an error if it is not valid or repeats what matches in several ways, such as `(a+)+`."""
    try:
        compiled = re.compile(pattern, re.MULTILINE)
        is_ambiguous = _repeats_a_choice(re._parser.parse(pattern), repeated=False)  # type: ignore[attr-defined]
    except (re.error, OverflowError, RecursionError) as error:
        raise TrellisError(f"data.heading is not a valid regular expression: {error}.") from error
    if is_ambiguous:
        raise TrellisError(
            "data.heading repeats a group that contains another repetition or alternatives, as in (a+)+ or (a|b c)*. "
            "Its search could take exponential time; write it without the outer repetition."
        )
    return compiled


def heading_starts(heading: re.Pattern[str], text: str) -> Iterator[int]:
    """The positions at which headings begin, among the first LONGEST characters of each line."""
    rests = [(line.start() + LONGEST, line.end()) for line in _LONG_LINE.finditer(text)]
    begins, ends = [0, *(end for _, end in rests)], [*(start for start, _ in rests), len(text)]
    pieces = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
    places = [0, *accumulate(len(piece) + len(CUT) for piece in pieces[:-1])]
    for match in heading.finditer(CUT.join(pieces)):
        piece = bisect_right(places, match.start()) - 1
        yield begins[piece] + match.start() - places[piece]


def _repeats_a_choice(tree: Any, repeated: bool) -> bool:
    """Whether a parsed pattern repeats a part that may match the same text in several ways."""
    if not isinstance(tree, list | tuple | re._parser.SubPattern):  # type: ignore[attr-defined]
        return False
    name, parts = str(getattr(tree[0], "name", "")) if len(tree) else "", tree  # not that of a plain number
    if isinstance(tree, tuple) and name in _REPEATS:
        least, most, parts = tree[1]
        if repeated and least != most:
            return True
        repeated = repeated or most > 1
    elif isinstance(tree, tuple) and name == _CHOICE and repeated:
        return True
    return any(_repeats_a_choice(part, repeated) for part in parts)
