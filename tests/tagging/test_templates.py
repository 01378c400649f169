"""Templates: which attributes words have."""

from __future__ import annotations

import pytest

from trellis.families.crf.templates import (
    TEMPLATES,
    affixes,
    chunk,
    huang,
    nearby,
    shape,
    short_shape,
    spelling,
    windowed,
)

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


def test_the_attributes_of_every_template() -> None:
    """All attributes of the second of three words, written out."""
    words = ["A", "iP-4", "up"]
    around = ["[-2]=<s>", "[-1]=a", "[0]=ip-4", "[1]=up", "[2]=</s>"]
    window = ["w[-2]=<s>", "w[-1]=A", "w[0]=iP-4", "w[1]=up", "w[2]=</s>"]
    pairs = ["w[-1,0]=A|iP-4", "w[0,1]=iP-4|up"]
    assert chunk(words, None)[1] == window + pairs
    assert chunk(words, ["DT", "NN", "RP"])[1] == [
        *window, *pairs, "p[-2]=<s>", "p[-1]=DT", "p[0]=NN", "p[1]=RP", "p[2]=</s>",
        "p[-2,-1]=<s>|DT", "p[-1,0]=DT|NN", "p[0,1]=NN|RP", "p[1,2]=RP|</s>",
        "p[-2,-1,0]=<s>|DT|NN", "p[-1,0,1]=DT|NN|RP", "p[0,1,2]=NN|RP|</s>",
    ]  # fmt: skip
    assert [huang([word], None)[0][5:] for word in ("Up", "UP", "uP", "u2", "Acting")] == [
        ["capital"], ["capital"], [], ["digit"], ["suffix=ing", "capital"],
    ]  # fmt: skip
    assert TEMPLATES["pos"](words, None)[1] == [
        *(f"w{one}" for one in around), "w[-1,0]=a|ip-4", "w[0,1]=ip-4|up", "W=iP-4",
        "pre=i", "pre=ip", "pre=ip-", "suf=4", "suf=-4", "suf=p-4",
        "bias", "shape=xX-d", "short=xX-d", "digit", "hyphen", "inner capital",
        "a[-2]=<s>", "a[-1]=a", "a[0]=p-4", "a[1]=up", "a[2]=</s>",
    ]  # fmt: skip
    beyond = ["s[-2]=<s>", "s[-1]=X", "s[0]=xX-d", "s[1]=x", "s[2]=</s>"]
    assert TEMPLATES["ner"](words, ["DT", "NN", "RP"])[1] == [
        *(one.replace("w[", "W[") for one in window), "w[0]=ip-4", "w[-1,0]=a|ip-4", "w[0,1]=ip-4|up",
        "pre=i", "pre=ip", "pre=ip-", "suf=4", "suf=-4", "suf=p-4",
        "bias", "shape=xX-d", "short=xX-d", "digit", "hyphen", "inner capital", "before=a", "after=up",
        *beyond, "s[-1,0]=X|xX-d", "s[0,1]=xX-d|x", "s[-1,0,1]=X|xX-d|x",
        "p[-2]=<s>", "p[-1]=DT", "p[0]=NN", "p[1]=RP", "p[2]=</s>", "p[-1,0]=DT|NN", "p[0,1]=NN|RP",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "marks"),
    [
        ("Up", ["capital"]),
        ("UP", ["capital", "all capitals"]),
        ("uP", ["inner capital"]),
        ("-u", []),
        ("u-", ["hyphen"]),
        ("UpTo", ["capital", "inner capital"]),
    ],
)
def test_spelling(word: str, marks: list[str]) -> None:
    assert spelling([word])[0][3:] == marks


def test_affixes_have_one_to_four_letters() -> None:
    assert affixes(["Binding", "a"]) == [
        ["pre=b", "pre=bi", "pre=bin", "pre=bind", "suf=g", "suf=ng", "suf=ing", "suf=ding"], [],
    ]  # fmt: skip


def test_nearby_words() -> None:
    rows = nearby(list("abcdefghij"))
    assert rows[5] == [*(f"before={w}" for w in "bcde"), *(f"after={w}" for w in "ghij")]
    assert rows[0] == [f"after={w}" for w in "bcde"]
    assert rows[9] == [f"before={w}" for w in "fghi"]
