"""What is kept of the original text: its characters, its unknown words and, for bytes and characters, all of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import trellis
from trellis.config import DataConfig
from trellis.corpus import Corpus, Split, load_corpus, read
from trellis.corpus.tokenize import EOS, TOKENIZERS
from trellis.tasks.lm import join

Loader = Callable[..., Corpus]
WHOLE = {"valid_fraction": 0.0, "test_fraction": 0.0}
no_fixture_check = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
pieces = st.sampled_from(
    ["a", "bb", "é", "語", "😀", " ", "  ", "\t", "\n", "\n\n", "\n \n", "\r\n", "\r", "\0", "\ufeff"]
)
texts = st.lists(pieces, min_size=1, max_size=30).map("".join)


def decoded(split: Split, corpus: Corpus) -> str:
    return "".join("\n" if word == EOS else word for word in corpus.vocab.decode(split.tokens))


def ended(text: str) -> str:
    """With a newline at the end: a text that lacks it is read as if it had one."""
    return text if text.endswith("\n") else text + "\n"


@no_fixture_check
@given(texts.map(lambda text: text + "x"), st.integers(4, 40), st.sampled_from(["blank", "file"]))
@example("\n\n a\n\n\nb\n \nc\n\n\n", 5, "blank")
@example("\ufeffa\0\r\n\r\nb", 4, "blank")
def test_characters_and_bytes_keep_the_whole_file(
    tmp_path: Path, cache: Path, text: str, block: int, documents
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    with patch.object(read, "BLOCK", block):
        config = DataConfig(str(path), tokenizer="characters", documents=documents, **WHOLE)
        characters = load_corpus(config, cache / str(block))
        config = DataConfig(str(path), tokenizer="bytes", documents=documents, **WHOLE)
        whole = load_corpus(config, cache / str(block))
    assert decoded(characters["train"], characters) == ended(text)
    assert characters.vocab.join(characters.vocab.decode(characters["train"].tokens)) == ended(text)
    assert decoded(whole["train"], whole).encode("latin-1") == ended(text).encode()
    for corpus in (characters, whole):
        split = corpus["train"]
        assert split.num_characters == len(ended(text))
        assert [decoded(split, corpus)[a:b].count("\n") for a, b in pairwise(split.sentences)] == [1] * ended(
            text
        ).count("\n")


@pytest.mark.parametrize("block", range(4, 14))
def test_documents_do_not_depend_on_blocks(tmp_path: Path, cache: Path, block: int) -> None:
    (tmp_path / "text.txt").write_text("\na\n\n\n\n\nb\nb\n\nc\n \n\n\n")
    with patch.object(read, "BLOCK", block):
        corpus = load_corpus(DataConfig(str(tmp_path / "text.txt"), tokenizer="characters", **WHOLE), cache)
    split = corpus["train"]
    shown = [decoded(split._replace(tokens=split.tokens[a:b]), corpus) for a, b in pairwise(split.documents)]
    assert shown == ["\n", "a\n\n\n\n\n", "b\nb\n\n", "c\n \n\n\n"]


@no_fixture_check
@given(st.binary(min_size=1, max_size=60))
@example(b"\xff\xfe\0\n\n\x80\r\n")
def test_any_bytes_are_kept(tmp_path: Path, cache: Path, data: bytes) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(data + b"x")
    corpus = load_corpus(DataConfig(str(path), tokenizer="bytes", **WHOLE), cache)
    assert decoded(corpus["train"], corpus).encode("latin-1") == data + b"x\n"


def test_documents_of_a_whole_text_begin_after_blank_lines(load: Loader) -> None:
    text = "\n\n".join(f"a{i}\nb" for i in range(40)) + "\n"
    corpus = load(text, tokenizer="characters")
    shown = [decoded(split, corpus) for split in corpus.splits.values()]
    assert [split.documents.size - 1 for split in corpus.splits.values()] == [36, 2, 2]
    assert sum(map(len, shown)) == len(text)
    assert sum(split.num_characters for split in corpus.splits.values()) == len(text)
    split = corpus["train"]
    for start, stop in pairwise(split.documents):
        assert decoded(split._replace(tokens=split.tokens[start:stop]), corpus).rstrip("\n").count("\n") == 1


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_characters_are_those_of_the_file_with_any_tokenizer(load: Loader, tokenizer: str) -> None:
    """Of all splits together, whatever is lower-cased, replaced or dropped."""
    text = "".join(f"Word {i} is here,  it's 100% so.\n{' ' * (i % 3)}\n" * (i % 2) + f"É {i}\n" for i in range(60))
    corpus = load(text, tokenizer=tokenizer, lower=True, digits=True)
    assert sum(split.num_characters for split in corpus.splits.values()) == len(text)
    for split in corpus.splits.values():
        assert split.characters.size == split.sentences.size
        assert (split.characters[1:] > split.characters[:-1]).all()
    whole = load(text, tokenizer=tokenizer, **WHOLE)["train"]
    kept = [line for line in text.split("\n")[:-1] if TOKENIZERS[tokenizer].exact or line.strip()]
    assert whole.sentences.size - 1 == len(kept)
    joined = join(list(corpus.splits.values()))
    assert joined.num_characters == len(text)
    assert len(joined.unknown_words()) == int((joined.tokens == corpus.vocab.unk).sum())


def test_a_divided_line_has_its_characters_divided(load: Loader) -> None:
    words = [("a" * (i % 7 + 1)) for i in range(200)]
    text = " ".join(words)
    corpus = load(text, min_count=1)
    for name, split in corpus.splits.items():
        own = [word for word in corpus.vocab.decode(split.tokens) if word != EOS]
        assert abs(split.num_characters - len(" ".join(own)) - 1) <= 1, name  # a blank or newline after the last
    assert sum(split.num_characters for split in corpus.splits.values()) == len(text) + 1


def test_two_lines_are_divided_between_tokens(load: Loader) -> None:
    """Fewer lines than splits: the held-out texts begin within the second line."""
    text = f"{'some words ' * 9}here\n{' '.join('a' * (i % 7 + 1) for i in range(200))}"
    corpus = load(text, min_count=1)
    for name, split in corpus.splits.items():
        own = [word for word in corpus.vocab.decode(split.tokens) if word != EOS]
        assert abs(split.num_characters - len(" ".join(own)) - 1) <= 1, name
    assert sum(split.num_characters for split in corpus.splits.values()) == len(text) + 1


def test_sentences_of_few_letters_leave_with_their_characters(load: Loader) -> None:
    text = "abc def\n1 2 3 4\n" * 30
    whole, some = load(text), load(text, min_letters=0.5)
    letters = sum(
        line.startswith("a") for line in whole.vocab.join(whole.vocab.decode(whole["train"].tokens)).split("\n")
    )
    assert some["train"].num_characters == 8 * letters


def test_sentences_of_python_have_characters(load: Loader) -> None:
    corpus = trellis.read_corpus(["The cat", ["a", "dog"], "a  b"], **WHOLE)
    assert corpus["train"].characters.tolist() == [0, 8, 14, 19]
    blank = trellis.read_corpus(["ab", "", "c"], tokenizer="characters", **WHOLE)
    assert blank.vocab.decode(blank["train"].tokens) == ["a", "b", EOS, EOS, "c", EOS]


def test_words_seen_once_are_unknown_by_default(load: Loader) -> None:
    lines = [f"a b once{i} c a b" if i % 3 == 0 else "a b c" for i in range(120)]
    corpus = load("\n".join(lines))
    train = corpus["train"]
    assert set(corpus.vocab.words) == {
        EOS,
        "a",
        "b",
        "c",
        "<unk>",
    }
    found = [word for line in lines[:108] for word in line.split() if word.startswith("once")]
    assert train.unknown_words() == found
    assert corpus.vocab.counts[corpus.vocab.unk] == len(found)
    kept = load("\n".join(lines), min_count=1)
    assert set(found) < set(kept.vocab.words)
    assert kept["train"].unknown_words() == []
    assert kept["test"].unknown_words() == corpus["test"].unknown_words() != []


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a b <unk> c\n" + "a b\n" * 50, {}),  # an <unk> of its own
        ("a b x\n" + "a b\n" * 50, {"unk": False}),
        ("abx\n" + "ab\n" * 50, {"tokenizer": "characters"}),
        ("abx\n" + "ab\n" * 50, {"tokenizer": "bytes"}),
        ("abx\n" + "ab\n" * 50, {"tokenizer": "symbols"}),
        ("c d e f\ng h i j\n" + "a a\n" * 3, {}),  # too small
    ],
)
def test_words_seen_once_are_kept(load: Loader, text: str, options: dict) -> None:
    words = {word for word in TOKENIZERS[options.get("tokenizer", "whitespace")].split(text) if word != "\n"}
    corpus = load(text, **options, **WHOLE)
    assert words <= set(corpus.vocab.words)


@pytest.mark.parametrize(("name", "min_count"), [("ptb", 1), ("wikitext-2", 1), ("text8", 5), ("python-docs", 2)])
def test_named_corpora_keep_their_vocabulary(name: str, min_count: int) -> None:
    from trellis.corpus.recipe import make_recipe

    assert make_recipe(DataConfig(name)).min_count == min_count


def test_evaluation_warns_about_unknown_words_without_training(caplog: pytest.LogCaptureFixture) -> None:
    model = trellis.train(["a b", "b a"] * 20, family="bigram").model
    with caplog.at_level(logging.WARNING):
        trellis.evaluate(model, ["a b"])
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        trellis.evaluate(model, ["a zebra b"])
    assert "1 tokens (25.0% of the text) are unknown words" in caplog.text


def test_a_run_warns_about_unknown_words_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "text").mkdir()
    for name, text in {"train": "a b\n" * 20, "valid": "a b\n" * 5, "test": "a zebra\n" * 5}.items():
        (tmp_path / "text" / f"{name}.txt").write_text(text)
    with caplog.at_level(logging.WARNING):
        trellis.train(tmp_path / "text", tmp_path / "run", family="bigram", min_count=1)
    assert caplog.text.count("are unknown words") == 1


def test_unknown_words_without_training_are_warned_about(load: Loader, caplog: pytest.LogCaptureFixture) -> None:
    text = "a b\n" * 100 + "a zebra\n" * 5
    with caplog.at_level(logging.WARNING):
        load(text)
    assert "5 tokens (33.3% of test) are unknown words" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        load("rare words\n" + text)
    assert "WARNING" not in caplog.text
    assert "2 words seen once (0.7% of the training tokens) are <unk>" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        load("a b\n" * 100)
    assert not caplog.text


def test_words_seen_twice_are_kept_by_default(load: Loader) -> None:
    for tokenizer in ("whitespace", "words"):
        vocab = load("a b\n" * 100 + "twice twice once\n", tokenizer=tokenizer, **WHOLE).vocab
        assert set(vocab.words) == {"a", "b", "twice", "<eos>", "<unk>"}


def test_white_space_at_the_end_of_the_text_is_counted(load: Loader) -> None:
    for text in ("a b\n" * 9, "a b\n" * 9 + "\n \n\n"):
        split = load(text, **WHOLE)["train"]
        assert split.characters is not None
        assert len(split.characters) == len(split.sentences)
        assert split.num_characters == len(text)
