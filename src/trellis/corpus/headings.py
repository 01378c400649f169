"""Regular expressions for the headings of documents, in `re`, without those that may take exponential time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trellis.errors import TrellisError

LONGEST = 1000  # characters of a line in which a heading is searched
_LONG_LINE = re.compile(rf"^[^\n]{{{LONGEST + 1},}}", re.MULTILINE)
_REPEATS = {re._constants.MAX_REPEAT, re._constants.MIN_REPEAT, re._constants.POSSESSIVE_REPEAT}  # type: ignore[attr-defined]
_CHOICE = re._constants.BRANCH  # type: ignore[attr-defined]


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
    begin = 0
    for line in _LONG_LINE.finditer(text):
        yield from (match.start() for match in heading.finditer(text, begin, line.start() + LONGEST))
        begin = line.end()
    yield from (match.start() for match in heading.finditer(text, begin))


def _repeats_a_choice(tree: Any, repeated: bool) -> bool:
    """Whether a parsed pattern repeats a part that may match the same text in several ways."""
    if not isinstance(tree, list | tuple | re._parser.SubPattern):  # type: ignore[attr-defined]
        return False
    name, parts = tree[0] if len(tree) else None, tree
    if isinstance(tree, tuple) and name in _REPEATS:
        least, most, parts = tree[1]
        if repeated and least != most:
            return True
        repeated = repeated or most > 1
    elif isinstance(tree, tuple) and name is _CHOICE and repeated:
        return True
    return any(_repeats_a_choice(part, repeated) for part in parts)
