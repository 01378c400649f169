"""Templates: which attributes words have."""

from __future__ import annotations

import pytest

from trellis.families.crf.templates import TEMPLATES, chunk, huang, shape, short_shape, windowed

WORDS, POS = ["The", "IL-2", "binding", "."], ["DT", "NN", "NN", "."]


def test_windows_are_marked_at_the_edges_of_the_sentence() -> None:
    assert windowed("w", ["a", "b"])[0] == ["w[-2]=<s>", "w[-1]=<s>", "w[0]=a", "w[1]=b", "w[2]=</s>"]


def test_the_chunker_has_its_19_attributes() -> None:
    rows = chunk(WORDS, POS)
    assert [len(set(row)) for row in rows] == [19] * 4
    assert {"w[0,1]=IL-2|binding", "p[-1,0,1]=DT|NN|NN"} <= set(rows[1])
    assert [len(row) for row in chunk(WORDS, None)] == [7] * 4


def test_huang_and_yates() -> None:
    assert {"suffix=ing"} == set(huang(WORDS, None)[2]) - {f"w[{i}]={w}" for i, w in zip(
        range(-2, 3), [*WORDS, "</s>"], strict=True)}  # fmt: skip
    assert {"capital", "digit"} <= set(huang(WORDS, None)[1])
    assert "p[0]=NN" in huang(WORDS, POS)[1]


@pytest.mark.parametrize(
    ("word", "long", "short"), [("IL-2", "XX-d", "X-d"), ("Été", "xxx", "x"), ("1996", "dddd", "d")]
)
def test_shapes(word: str, long: str, short: str) -> None:
    assert (shape(word), short_shape(word)) == (long, short)


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_takes_any_sentence(name: str) -> None:
    for words in (["a"], WORDS, ["-", "´", "x" * 50]):
        rows = TEMPLATES[name](words, None)
        assert len(rows) == len(words)
        assert all(row and "\n" not in "".join(row) for row in rows)
