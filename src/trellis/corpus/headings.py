"""Find the headings of documents by regular expressions; those that may take exponential time are rejected."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from trellis.corpus.unambiguous import REPEATS, is_unambiguous
from trellis.errors import TrellisError

LONGEST = 1000  # a heading must begin within this many characters of its line
CUT = "\0"  # in the place of the rest of a long line, so that its beginning is not taken for a whole line
_LONG_LINE = re.compile(rf"^[^\n]{{{LONGEST + 1},}}", re.MULTILINE)
PLAIN = re.compile("", re.MULTILINE).flags, re.compile("", re.MULTILINE | re.DOTALL).flags
_GROUPS = list, tuple, re._parser.SubPattern  # type: ignore[attr-defined]


def compile_heading(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. Raises if it is invalid, or if it repeats a group that can match the same text in several
    ways, as in `(a+)+`."""
    try:
        compiled = re.compile(pattern, re.MULTILINE)
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
        repeated = [part for part in _outermost(parsed) if _has_choice(part[1][2])]
        is_ambiguous = not all(compiled.flags in PLAIN and is_unambiguous(part) for part in repeated)
    except (re.error, OverflowError, RecursionError) as error:
        raise TrellisError(f"data.heading is not a valid regular expression: {error}.") from error
    if is_ambiguous:
        raise TrellisError(
            "data.heading repeats a group that may match a text in several ways, as in (a+)+ or (a|ab|b)*. Its search "
            "could take exponential time; write it without the outer repetition."
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


def _outermost(tree: Any) -> Iterator[Any]:
    """The repeated parts of a parsed pattern that are not inside another repeated part."""
    if _name(tree) in REPEATS and tree[1][1] > 1:
        yield tree
    elif isinstance(tree, _GROUPS):
        for part in tree:
            yield from _outermost(part)


def _has_choice(tree: Any) -> bool:
    """Whether a part of a parsed pattern may match the same text in several ways."""
    if _name(tree) == "BRANCH" or (_name(tree) in REPEATS and tree[1][0] != tree[1][1]):
        return True
    return isinstance(tree, _GROUPS) and any(map(_has_choice, tree))


def _name(tree: Any) -> str:
    return str(getattr(tree[0], "name", "")) if isinstance(tree, tuple) and tree else ""
