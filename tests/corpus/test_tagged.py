"""Tagged text: every format, what is wrong with a line, and the data sets as published."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from trellis.config import GIVEN, TaggedDataConfig
from trellis.corpus.tagged import Tagged, _without, describe_splits, load_tagged, read_splits, read_tagged
from trellis.errors import TrellisError

CONLL = "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\nsaid VBD I-VP O\n\n\nno DT I-NP O\n"
CONLLU = """# text = don't go
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tgone\tgo\tVERB\tVBN\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

"""
MEDPOST = "P01A01\nA_b_NN is_VBZ\nP01A02\nNo_DD\n"
needs_data = pytest.mark.skipif(not os.environ.get("TRELLIS_DATA"), reason="TRELLIS_DATA is not set")


@pytest.mark.parametrize(
    ("text", "format", "column", "expected"),
    [
        (CONLL, "conll", None, Tagged([["EU", "said"], ["no"]], [["I-ORG", "O"], ["O"]], [["NNP", "VBD"], ["DT"]])),
        (CONLL, "conll", 1, Tagged([["EU", "said"], ["no"]], [["NNP", "VBD"], ["DT"]])),
        ("a b\tX\nc\tY", "conll", None, Tagged([["a b", "c"]], [["X", "Y"]])),
        (CONLLU, "conllu", None, Tagged([["do", "n't", "go"]], [["AUX", "PART", "VERB"]])),
        (CONLLU, "conllu", "xpos", Tagged([["do", "n't", "go"]], [["VBP", "RB", "VB"]])),
        (MEDPOST, "medpost", None, Tagged([["A_b", "is"], ["No"]], [["NN", "VBZ"], ["DD"]])),
        ("A_b_NN is_VBZ\n\nNo_DD", "word_tag", None, Tagged([["A_b", "is"], ["No"]], [["NN", "VBZ"], ["DD"]])),
    ],
)
def test_formats(tmp_path: Path, text: str, format: str, column: int | str | None, expected: Tagged) -> None:
    plain, packed = tmp_path / "text", tmp_path / "text.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.replace("\n", "\r\n").encode()))
    assert read_tagged(plain, format, column) == read_tagged(packed, format, column) == expected


@pytest.mark.parametrize(
    ("text", "format", "column", "message"),
    [
        ("a X\nb\n", "conll", None, "line 2: 1 columns, expected at least 2"),
        ("a\n", "conll", None, "line 1: 1 columns, expected at least 2"),
        ("a X\n", "conll", 4, "line 1: 2 columns, expected at least 5"),
        ("a\tX\nb\t\n", "conll", None, "line 2: empty word or tag"),
        ("a X\n", "conll", "upos", "'upos' is not an integer"),
        ("# x\n1\ta\n", "conllu", None, "line 2: 2 columns, expected 10"),
        (CONLLU.replace("3\tgo", "x\tgo"), "conllu", None, "line 6: 'x' is not a word index"),
        (CONLLU.replace("3\tgo", "3\t "), "conllu", None, "line 6: empty word or"),
        (CONLLU, "conllu", "pos", "The column of the conllu format is 'pos', which is not recognised"),
        ("a_NN\nP01\n", "medpost", None, "line 1: expected a sentence id"),
        ("P01\na_NN\nP02\n", "medpost", None, "line 3: sentence id without a sentence"),
        ("P01\na_NN b\n", "medpost", None, "line 2: 'b' is not in the form word_TAG"),
        ("a_NN _NN\n", "word_tag", None, "line 1: '_NN' is not"),
        ("\n\n", "word_tag", None, "contains no tagged sentences"),
        ("a X\n", "conl", None, "did you mean"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, text: str, format: str, column: int | str | None, message: str
) -> None:
    (tmp_path / "text").write_text(text)
    with pytest.raises(TrellisError, match=message):
        read_tagged(tmp_path / "text", format, column)


def test_parts_and_sums_keep_words_and_tags_together() -> None:
    data = Tagged([["a"], ["b", "c"]], [["X"], ["Y", "X"]], [["P"], ["P", "Q"]])
    assert data[:1] + data[1:] == data
    assert (data[:1] + Tagged([["d"]], [["Z"]])).pos is None
    assert data.map_tags(lambda tags: [tag.lower() for tag in tags]).tag_set() == ["x", "y"]
    assert (len(data), data.num_tokens) == (2, 3)


@needs_data
@pytest.mark.parametrize(
    ("name", "split", "sentences", "tokens", "tags"),
    [
        ("conll2000", "test", 2012, 47_377, 19),
        ("conll2003", "valid", 3250, 51_362, 6),
        ("ud_ewt", "test", 2077, 25_094, 17),
        ("genia", "test", 1360, 35_641, 41),
        ("medpost", "test", 1000, 26_564, 62),
        ("treebank_sample", "test", 391, 9150, 40),
    ],
)
def test_data_sets_have_their_published_sizes(name: str, split: str, sentences: int, tokens: int, tags: int) -> None:
    data = load_tagged(name, split)
    assert (len(data), data.num_tokens, len(data.tag_set())) == (sentences, tokens, tags)


@needs_data
def test_what_a_data_set_does_not_have() -> None:
    with pytest.raises(TrellisError, match="conll2000 has no valid split; it has train, test"):
        load_tagged("conll2000", "valid")
    with pytest.raises(TrellisError, match="tagged data set is 'conll200'"):
        load_tagged("conll200", "train")


def test_data_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    with pytest.raises(TrellisError, match="set TRELLIS_DATA"):
        load_tagged("ud_ewt", "train")


def test_sentences_from_python_are_divided() -> None:
    sentences = [[("word", "A"), (str(number), "B")] for number in range(100)]
    found = read_splits(TaggedDataConfig(valid_fraction=0.1, test_fraction=0.2), sentences)
    assert {name: len(split) for name, split in found.items()} == {"train": 70, "valid": 10, "test": 20}
    assert sorted(int(words[1]) for split in found.values() for words in split.words) == list(range(100))
    assert all(tags == ["A", "B"] for split in found.values() for tags in split.tags)
    as_tagged = Tagged(*([[pair[i] for pair in row] for row in sentences] for i in range(2)))
    assert read_splits(TaggedDataConfig(valid_fraction=0.1, test_fraction=0.2), as_tagged) == found
    assert list(read_splits(TaggedDataConfig(valid_fraction=0.0, test_fraction=0.0), sentences)) == ["train"]


@pytest.mark.parametrize(
    ("source", "data", "message"),
    [
        ("", ["a b"], "list of sentences of"),
        ("", [[1, 2]], "list of sentences of"),
        ("", None, "No tagged text given"),
        ("", [], "no tagged sentences to train on"),
    ],
)
def test_no_tagged_text(source: str, data: object, message: str) -> None:
    with pytest.raises(TrellisError, match=message):
        read_splits(TaggedDataConfig(source=source), data)


def test_tokens_with_a_tag_are_dropped() -> None:
    data = Tagged([["a", "b"], ["c"]], [["X", "Y"], ["X"]])
    assert _without(data, "X") == Tagged([["b"]], [["Y"]])
    assert _without(data, "") is data


def test_the_sizes_of_splits_in_one_line() -> None:
    splits = {"train": Tagged([["a", "b"], ["c"]], [["X", "Y"], ["X"]]), "test": Tagged([["a"] * 1000], [["X"] * 1000])}
    file = describe_splits(TaggedDataConfig("here.conll"), splits)
    given = describe_splits(TaggedDataConfig(GIVEN), splits)
    assert file == "here.conll: 3 / 1,000 tokens (train / test)"
    assert given == "3 sentences: 3 / 1,000 tokens (train / test)"
