"""Spans in three schemes, and universal tags."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, strategies as st

from experiments.universal import UNIVERSAL, only, universal
from trellis.corpus.tagsets import SCHEMES, Span, convert, spans, write_spans
from trellis.errors import TrellisError

EXAMPLE = [Span("NP", 0, 1), Span("NP", 2, 2), Span("VP", 4, 6)]
WRITTEN = {
    "IOB1": ["I-NP", "I-NP", "B-NP", "O", "I-VP", "I-VP", "I-VP"],
    "IOB2": ["B-NP", "I-NP", "B-NP", "O", "B-VP", "I-VP", "I-VP"],
    "IOBES": ["B-NP", "E-NP", "S-NP", "O", "B-VP", "I-VP", "E-VP"],
}


@st.composite
def found(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Spans side by side or apart, and the length of their sentence."""
    parts = draw(st.lists(st.tuples(st.sampled_from(["", "A", "B-C"]), st.integers(1, 3)), max_size=8))
    made, end = [], 0
    for kind, length in parts:
        made += [Span(kind, end, end + length - 1)] if kind else []
        end += length
    return made, end


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_example_in_every_scheme(scheme: str) -> None:
    assert write_spans(EXAMPLE, 7, scheme) == WRITTEN[scheme]
    assert spans(WRITTEN[scheme]) == EXAMPLE


@given(found())
def test_what_is_written_reads_back(case: tuple[list[Span], int]) -> None:
    made, length = case
    for scheme in SCHEMES:
        tags = write_spans(made, length, scheme)
        assert spans(tags) == made
        assert all(convert(tags, other) == write_spans(made, length, other) for other in SCHEMES)


def test_tags_that_no_scheme_writes_are_read_as_conlleval_does() -> None:
    assert spans(["I-A", "I-B", "B-B"]) == [Span("A", 0, 0), Span("B", 1, 1), Span("B", 2, 2)]
    assert spans(["E-A", "I-A", "S-A"]) == [Span("A", 0, 0), Span("A", 1, 1), Span("A", 2, 2)]
    assert spans(["S-A", "I-A", "E-A"]) == [Span("A", 0, 0), Span("A", 1, 2)]


def test_one_kind_alone() -> None:
    assert only("NP")(WRITTEN["IOB1"]) == ["B-NP", "I-NP", "B-NP", "O", "O", "O", "O"]


def test_an_unknown_scheme_is_told() -> None:
    with pytest.raises(TrellisError, match="did you mean"):
        convert(["O"], "IOB")


@pytest.mark.skipif(not os.environ.get("TRELLIS_DATA"), reason="TRELLIS_DATA is not set")
def test_universal_tags() -> None:
    assert universal(["NNP", "VBZ", "-LRB-", "HYPH"]) == ["NOUN", "VERB", ".", "."]
    assert universal(["RR+", "VVNJ", "VBZ"], "medpost") == ["ADV", "ADJ", "VERB"]
    assert set(universal(["CC", "CD", "DT", "FW", "IN", "JJ", "NN", "PRP", "RB", "TO", "VB", "."])) == set(UNIVERSAL)
    with pytest.raises(TrellisError, match="'VVNJ' is not in the penn tag set"):
        universal(["VVNJ"])
