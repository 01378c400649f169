"""Span tags: conversion between IOB1, IOB2 and IOBES."""

import re
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from trellis.options import choose

OUTSIDE = "O"
SPAN_TAG = re.compile(r"[BIES]-.+|O")
FIRST, LAST = "BS", "ES"  # prefixes that always begin, and always end, a span in any scheme


class Span(NamedTuple):
    """Words first ... last (inclusive) with the label `kind`."""

    kind: str
    first: int
    last: int


def units_of(tags: Collection[str]) -> str:
    """The units that a tag set marks: "spans" if O is a tag and all others are like B-NP, else "tokens"."""
    return "spans" if OUTSIDE in tags and all(SPAN_TAG.fullmatch(tag) for tag in tags) else "tokens"


def spans(tags: Iterable[str]) -> list[Span]:
    """The spans of a sentence in any scheme, by conlleval's rules.

    A span continues while its label stays the same and no prefix begins or ends a span. An I that continues no span
    begins one."""
    found: list[Span] = []
    kind, first, place = "", 0, "O"
    for t, tag in enumerate([*tags, OUTSIDE]):
        now, _, now_kind = (tag, "", "") if tag == OUTSIDE else tag.partition("-")
        goes_on = place not in (*LAST, OUTSIDE) and now not in (*FIRST, OUTSIDE) and now_kind == kind
        if not goes_on and place != OUTSIDE:
            found.append(Span(kind, first, t - 1))
        if not goes_on:
            first = t
        kind, place = now_kind, now
    return found


def write_spans(found: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The tags of `length` words in a scheme: "IOB1" (B only between adjacent spans of one kind), "IOB2" or "IOBES"."""
    letters_of = choose(SCHEMES, scheme, "The span scheme")
    tags, before = [OUTSIDE] * length, Span("", -2, -2)
    for span in found:
        letters = letters_of(span.last - span.first + 1, before == (span.kind, before.first, span.first - 1))
        tags[span.first : span.last + 1] = [f"{letter}-{span.kind}" for letter in letters]
        before = span
    return tags


def convert(tags: list[str], scheme: str) -> list[str]:
    """Convert the tags of a sentence to another scheme."""
    return write_spans(spans(tags), len(tags), scheme)


SCHEMES: dict[str, Callable[[int, bool], str]] = {  # prefixes of n words; whether a span of this kind ends just before
    "IOB1": lambda n, touching: ("B" if touching else "I") + "I" * (n - 1),
    "IOB2": lambda n, touching: "B" + "I" * (n - 1),
    "IOBES": lambda n, touching: "S" if n == 1 else "B" + "I" * (n - 2) + "E",
}
