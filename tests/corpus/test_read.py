"""Readers against reading the whole file at once."""

from __future__ import annotations

import gzip
from itertools import groupby
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given, strategies as st

from trellis.config import DataConfig
from trellis.corpus import read
from trellis.corpus.headings import LONGEST
from trellis.corpus.read import decode_blocks, read_texts
from trellis.corpus.recipe import Recipe, check_recipe, make_recipe
from trellis.corpus.tokenize import DOCUMENT
from trellis.errors import TrellisError

Documents = list[list[str]]

WIKITEXT = " \n = A = \n \n x = y = \n\n = = s = = \n\n text\n \n = B b = \n \n = not = \n"


def read_documents(path: Path, **choices: object) -> Documents:
    """The lines of each document that is not empty."""
    recipe = make_recipe(DataConfig(**choices), Path(path.name.removesuffix(".gz")).suffix)
    text = "".join(read_texts([path], recipe))
    assert text.endswith("\n") or not text.strip(f"{DOCUMENT} ")
    return [document.removesuffix("\n").split("\n") for document in text.split(DOCUMENT) if document.strip(" \t")]


@pytest.fixture
def write(tmp_path: Path):
    def write_file(content: str | bytes, name: str = "file.txt") -> Path:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path / name

    return write_file


lines = st.lists(
    st.sampled_from(["", " ", "\t", "a", "é語 a", " aa ", "語" * 9, "😀" * 9, "a b c d e f g h i"]), max_size=12
)


@given(lines, st.sampled_from(["", "\n", "\r\n"]), st.integers(4, 12))
@example([], "\r\n", 5)
@example(["😀😀"], "\n", 7)  # a block that ends after three of four bytes
def test_small_blocks_read_the_same_as_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, block: int
) -> None:
    lines = [*lines, "last"]
    path = tmp_path_factory.getbasetemp() / "blocks.txt"
    path.write_bytes(((end or "\n").join(lines) + end).encode())
    with patch.object(read, "BLOCK", block):
        by_file, by_blank = (read_documents(path, documents=documents) for documents in ("file", "blank"))
    assert by_file == [lines]
    runs = groupby(lines, key=lambda line: bool(line.strip()))
    found = [[line.strip() for line in document] for document in by_blank]  # the blanks of a blank line come first
    assert found == [[line.strip() for line in run] for has_words, run in runs if has_words]


@pytest.mark.parametrize("name", ["wiki.txt", "wiki.txt.gz"])
@pytest.mark.parametrize("block", [*range(12, 40), 1 << 20])
def test_wikitext_articles(write, name: str, block: int) -> None:
    with patch.object(read, "BLOCK", block):
        first, second = read_documents(write(WIKITEXT, name), documents="heading")
    assert [line.strip() for line in first] == ["", "= A =", "", "x = y =", "", "= = s = =", "", "text"]
    assert [line.strip() for line in second] == ["", "= B b =", "", "= not ="]


def test_a_heading_of_ones_own(write) -> None:
    path = write("preface\nCHAPTER I\none\nCHAPTER II\ntwo\n")
    chapters = read_documents(path, documents="heading", heading=r"^CHAPTER")
    assert chapters == [["preface"], ["CHAPTER I", "one"], ["CHAPTER II", "two"]]


@pytest.mark.parametrize("heading", ["[ab]+x", "(?:ab){2}", "(a|b)*x", "(?:a+){0,1}b", "^a|^b+", "^[+-9]", "(a)?" * 45])
def test_a_heading_may_repeat_what_matches_in_one_way(heading: str) -> None:
    assert make_recipe(DataConfig(heading=heading)).heading == heading


@pytest.mark.parametrize("heading", [r"^=.*=$", r"^[=x]+$"])
def test_the_beginning_of_a_long_line_is_no_heading(write, heading: str) -> None:
    rows = ["a", "=x=", "b", "=" + "x" * (LONGEST - 2) + "= and more", "c", "=x=", "d"]
    found = read_documents(write("\n".join(rows)), documents="heading", heading=heading)
    assert [one[0] for one in found] == ["a", "=x=", "=x="]


@pytest.mark.parametrize("block", range(5, 12))
def test_headings_begin_at_the_beginning_of_a_line(write, block: int) -> None:
    lines = ["xA", "xxA", "A", "xA", "xxxA"] * 4
    with patch.object(read, "BLOCK", block):
        found = read_documents(write("\n".join(lines)), documents="heading", heading="^A$")
    assert [len(document) for document in found] == [2, 5, 5, 5, 3]


def test_headings_are_searched_in_the_first_characters_of_a_line(write) -> None:
    words = "x " * (LONGEST // 2)
    path = write(f"{words}H1\nH2 {words}H3\na H4\n")
    found = read_documents(path, documents="heading", heading=r"H\d")
    assert [document[0][:4] for document in found] == ["x x ", "H2 x", "H4"]


def test_fasta_joins_wrapped_lines_and_skips_empty_records(write) -> None:
    path = write(">one x\nMKV\nLA\n\n>none\n>two\nGG\nG", "proteins.fa")
    assert read_documents(path) == [["MKVLA"], ["GGG"]]


def test_csv_columns_by_name_and_index(write) -> None:
    path = write('id,text\n1,"a, b\nc"\n2,d\n\n', "table.csv")
    assert read_documents(path, column="text") == [["a, b c"], ["d"]]
    assert read_documents(path, column="1") == [["text"], ["a, b c"], ["d"]]


def test_csv_events_are_grouped_by_their_sequence(write) -> None:
    path = write("user,event\nu,log in\nu,2\nv,3\n", "events.csv")
    assert read_documents(path, column="user:event") == [["log_in 2"], ["3"]]


def test_bytes_need_not_be_utf8_and_a_byte_order_mark_is_dropped(write) -> None:
    assert read_documents(write(b"a\xff\n"), tokenizer="bytes") == [["a\udcff"]]
    assert read_documents(write(b"\xef\xbb\xbfa\r\nb\n")) == [["a", "b"]]


def test_characters_that_arrive_byte_by_byte() -> None:
    data = "é語😀\n".encode()
    blocks = (data[i : i + 1] for i in range(len(data)))
    assert "".join(decode_blocks(blocks, "pipe", make_recipe(DataConfig(), ".txt"))) == "é語😀\n"


def test_a_pipe_may_split_a_blank_line() -> None:
    whole, recipe = b"a\n \t\nb\n", make_recipe(DataConfig(documents="blank"), ".txt")
    for cut in range(1, len(whole)):
        pieces = decode_blocks([whole[:cut], whole[cut : cut + 1], whole[cut + 1 :]], "pipe", recipe)
        assert "".join(read.DOCUMENT_MARKERS["blank"](pieces, recipe)).count(DOCUMENT) == 1


def test_text_that_is_not_utf8_is_located(write) -> None:
    path = write(b"good line\n" * 5 + b"bad \xff line\n")
    with patch.object(read, "BLOCK", 16), pytest.raises(TrellisError, match=r"file\.txt is not UTF-8.*byte 54 is 0xff"):
        read_documents(path)


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"plain", lambda data: data[:12] + b"\0" * 30])
def test_broken_gzip_files(tmp_path: Path, damage) -> None:
    path = tmp_path / "broken.txt.gz"
    path.write_bytes(damage(gzip.compress(b"some words " * 100)))
    with pytest.raises(TrellisError, match=r"broken\.txt\.gz is not a complete gzip file"):
        read_documents(path)


@pytest.mark.parametrize(
    ("content", "column", "message"),
    [
        ("a,b\n1,2\n", "c", "no column 'c'.*a, b"),
        ("a,b\n1,2\n", "2", "no column '2'"),
        ("a,b\n1\n", "b", "row with 1 columns"),
        (f"a\n{'x' * 200_000}\n", "a", r"not a readable CSV.*line 2"),
    ],
)
def test_mistakes_in_csv_files(write, content: str, column: str, message: str) -> None:
    with pytest.raises(TrellisError, match=message):
        read_documents(write(content, "table.csv"), column=column)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"tokenizer": "sentencepiece"},
            "'sentencepiece', which is not recognised; choose from whitespace, words",
        ),
        ({"reader": "xml"}, "choose from text, fasta, csv"),
        ({"documents": "page"}, "choose from file, blank, heading"),
        ({"reader": "csv"}, "needs data.column"),
        ({"heading": "("}, "not a valid regular expression"),
        ({"heading": "(" * 900 + ")" * 900}, "not a valid regular expression"),
        ({"heading": "(a+)+$"}, "repeats a group"),
        ({"heading": "(?=(?:x|(a|aa))*$)"}, "repeats a group"),
        ({"heading": "(.*a){9}b"}, "repeats a group"),
        ({"min_count": -1}, "must not be negative"),
        ({"valid_fraction": 0.5, "test_fraction": 0.5}, "sum to less than 1"),
    ],
)
def test_impossible_choices(choices: dict[str, object], message: str) -> None:
    with pytest.raises(TrellisError, match=message):
        make_recipe(DataConfig(**choices))


def test_explicit_choices_win_over_those_of_the_source() -> None:
    own, mine = make_recipe(DataConfig("python-docs")), make_recipe(DataConfig("python-docs", lower=False, min_count=7))
    assert (own.tokenizer, own.lower, own.min_count) == ("words", True, 2)
    assert (mine.tokenizer, mine.lower, mine.min_count) == ("words", False, 7)


def test_pieces_are_gathered_into_blocks() -> None:
    with patch.object(read, "BLOCK", 4):
        assert list(read._gather(["ab", "c", "de", "f"])) == ["abcde", "f"]
        assert list(read._gather(["abcd", "efgh"])) == ["abcd", "efgh", ""]


def test_an_entry_point_that_is_not_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "entries", lambda group: {"odd": "math:pi"})
    with pytest.raises(TrellisError, match=r"'odd' of trellis\.readers is 'math:pi', which is not a Reader"):
        read.find_reader("odd")


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_the_share_of_letters_is_a_share(share: float) -> None:
    with pytest.raises(TrellisError, match="between 0 and 1"):
        check_recipe(Recipe(min_letters=share))
    for bound in (0.0, 1.0):
        check_recipe(Recipe(min_letters=bound))
