"""Encoded corpora against counting and numbering by hand, published sizes, and a cache under attack."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from trellis.config import DataConfig
from trellis.corpus import Corpus, cache_entries, encode, load_corpus, read, splits
from trellis.corpus.load import corpus_of
from trellis.errors import TrellisError

Loader = Callable[..., Corpus]

documents = st.lists(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4), min_size=1, max_size=3))


def as_lists(split: splits.Split, corpus: Corpus) -> list[list[list[str]]]:
    """Words by document and sentence; <eos> must end every sentence and nothing else."""
    found = []
    for start, stop in pairwise(split.documents):
        ends = [end for end in split.sentences if start <= end <= stop]
        sentences = [corpus.vocab.decode(split.tokens[a:b]) for a, b in pairwise(ends)]
        assert all(sentence[-1] == "<eos>" and "<eos>" not in sentence[:-1] for sentence in sentences)
        found.append([sentence[:-1] for sentence in sentences])
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(documents.filter(lambda drawn: len(drawn) >= 3), st.integers(1, 2), st.integers(1, 7))
def test_a_corpus_is_its_text_document_by_document(load: Loader, drawn, min_count: int, chunk: int) -> None:
    text = "\n\n".join("\n".join(" ".join(sentence) for sentence in document) for document in drawn)
    with patch.object(splits, "CHUNK", chunk):
        corpus = load(text, min_count=min_count)
    found = {name: as_lists(split, corpus) for name, split in corpus.splits.items()}
    assert list(found) == ["train", "valid", "test"]
    seen = Counter(corpus.vocab.decode(corpus["train"].tokens))
    assert {word: count for word, count in zip(corpus.vocab.words, corpus.vocab.counts, strict=True) if count} == seen
    vocabulary = set(corpus.vocab.words)
    expected = [[[w if w in vocabulary else "<unk>" for w in sentence] for sentence in doc] for doc in drawn]
    assert sorted(chain.from_iterable(found.values())) == sorted(expected)
    held_out = max(1, round(len(drawn) * 0.05))
    assert [len(found[name]) for name in ("valid", "test")] == [held_out, held_out]


def test_a_single_document_is_cut_between_sentences(load: Loader) -> None:
    corpus = load("".join(f"s{i} x\n" for i in range(100)), min_count=1)
    last = {name: as_lists(split, corpus)[0][-1] for name, split in corpus.splits.items()}
    sizes = {name: split.sentences.size - 1 for name, split in corpus.splits.items()}
    assert sizes == {"train": 90, "valid": 5, "test": 5}
    assert last["train"] == ["s89", "x"]


def test_fewer_documents_than_splits_are_cut_between_sentences(load: Loader) -> None:
    corpus = load("".join(f"s{i} x\n" + "\n" * (i == 49) for i in range(100)), min_count=1)
    sizes = {name: [len(document) for document in as_lists(split, corpus)] for name, split in corpus.splits.items()}
    assert sizes == {"train": [50, 40], "valid": [5], "test": [5]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.sampled_from(["ab", "aB", "7", "abc", "é"]), min_size=1, max_size=3), min_size=1)),
    st.sampled_from([0.3, 0.5, 1.0]),
)
def test_sentences_of_few_letters_are_not_trained_on(load: Loader, drawn, share: float) -> None:
    drawn = [[["abc"]], *drawn, [["abc"]], [["abc"]], [["7"]]]  # one of three is in train at least
    text = "\n\n".join("\n".join(" ".join(sentence) for sentence in document) for document in drawn)
    whole, corpus = load(text, min_count=1), load(text, min_letters=share, min_count=1)

    def good(sentence: list[str]) -> bool:
        line = "".join(sentence)
        return sum("a" <= letter <= "z" for letter in line) >= share * len(line)

    expected = [[s for s in document if good(s)] for document in as_lists(whole["train"], whole)]
    assert as_lists(corpus["train"], corpus) == [document for document in expected if document]
    seen = Counter(corpus.vocab.decode(corpus["train"].tokens))
    assert {word: count for word, count in zip(corpus.vocab.words, corpus.vocab.counts, strict=True) if count} == seen
    assert corpus["valid"].tokens.size == whole["valid"].tokens.size


def test_a_text_without_letters_is_told(load: Loader) -> None:
    with pytest.raises(TrellisError, match="no words in the train split"):
        load("1 2\n3 4\n" * 20, min_letters=0.9)
    with pytest.raises(TrellisError, match="min_letters"):
        load("a b\n" * 20, min_letters=9.0)


def test_fractions_of_nothing_leave_only_training(load: Loader) -> None:
    corpus = load("a\nb\n", valid_fraction=0.0, test_fraction=0.0)
    assert list(corpus.splits) == ["train"]
    assert corpus.vocab.decode(corpus["train"].tokens) == ["a", "<eos>", "b", "<eos>"]


def test_characters_of_a_long_line_and_symbols_of_a_fasta_file(load: Loader) -> None:
    corpus = load("abc " * 50, tokenizer="characters")
    whole = "".join(word for split in corpus.splits.values() for word in corpus.vocab.decode(split.tokens))
    assert whole.replace("<eos>", "") == "abc " * 50
    assert whole.count("<eos>") == 3
    proteins = load("".join(f">p{i}\nMK\nV\n" for i in range(30)), "p.fasta")
    assert proteins["train"].documents.size - 1 == 26
    assert proteins.vocab.decode(proteins["test"].tokens[:4]) == ["M", "K", "V", "<eos>"]


def test_a_text_encodes_alone_as_it_did_in_the_corpus(load: Loader) -> None:
    corpus = load("The Cat, sat 12 times.\n" * 20, tokenizer="words", lower=True, digits=True)
    alone = corpus.vocab.encode(corpus.vocab.split("The Cat, sat 12 times."))
    assert alone.tolist() == corpus["train"].tokens[: alone.size].tolist()


def test_arrays_are_memory_mapped_and_read_only(load: Loader) -> None:
    split = load("a b\n" * 10 + "rare\n" + "a b\n" * 30)["train"]
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in split)
    assert [array.dtype for array in split] == [np.int32, np.int64, np.int64, np.int64, np.uint8]


@pytest.mark.parametrize("text", ["", "\n\n", "   \n"])
def test_an_empty_corpus(load: Loader, text: str) -> None:
    with pytest.raises(TrellisError, match=r"no words in .*text\.txt"):
        load(text)


def test_an_empty_split(tmp_path: Path, cache: Path, load: Loader) -> None:
    (tmp_path / "train.txt").write_text("a\n")
    (tmp_path / "valid.txt").write_text("\n")
    with pytest.raises(TrellisError, match="no words in the valid split"):
        load_corpus(DataConfig(str(tmp_path)), cache)
    with pytest.raises(TrellisError, match="no words in the train split"):
        load("word")
    assert cache_entries(cache) == []


def test_unseen_words_without_unk(load: Loader, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "train.txt").write_text("a a\n")
    (tmp_path / "valid.txt").write_text("a zebra\n")
    with pytest.raises(TrellisError, match="'zebra', token 2 of the valid split"):
        load_corpus(DataConfig(str(tmp_path), unk=False), cache)
    with pytest.raises(TrellisError, match="'b', token 2 of the train split"):
        load("a b a\n" + "a\n" * 30, unk=False, min_count=2)
    with patch.object(splits, "CHUNK", 3), pytest.raises(TrellisError, match="'b', token 9 of the train split"):
        load("a a a\n" * 2 + "b a\n" + "a\n" * 30, unk=False, min_count=2)
    with pytest.raises(TrellisError, match="'b', token 2 of the train split"):
        corpus_of(["a b a", *["a"] * 30], DataConfig(unk=False, min_count=2))


def test_the_key_is_the_content_and_the_recipe(load: Loader, cache: Path) -> None:
    first = load("a b\n" * 20)
    with patch.object(encode, "_number_tokens", side_effect=AssertionError("encoded again")):
        assert load("a b\n" * 20).vocab == first.vocab
    load("a c\n" * 20)
    load("a c\n" * 20, lower=True)
    assert len(cache_entries(cache)) == 3


def test_the_key_is_which_split_has_which_text(tmp_path: Path, cache: Path) -> None:
    """The same bytes in the same order, in other splits or divided among files in another way."""
    folder = tmp_path / "text"
    folder.mkdir()
    for files in (
        {"train": "a\nb\n", "valid": "c\n"},
        {"train": "a\nb\n", "test": "c\n"},
        {"train": "a\n", "test": "b\nc\n"},
    ):
        for path in folder.iterdir():
            path.unlink()
        for name, text in files.items():
            (folder / f"{name}.txt").write_text(text)
        corpus = load_corpus(DataConfig(str(folder), min_count=1), cache)
        assert {name: split.sentences.size - 1 for name, split in corpus.splits.items()} == {
            name: text.count("\n") for name, text in files.items()
        }


@pytest.mark.parametrize("victim", ["train.tokens", "valid.sentences", "vocab.json", "meta.json"])
@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, path.stat().st_size // 2), Path.unlink])
def test_a_broken_entry_is_built_again(load: Loader, cache: Path, victim: str, damage) -> None:
    whole = load("a b\n" * 40)["train"].tokens.tolist()
    damage(cache_entries(cache)[0].path / victim)
    assert load("a b\n" * 40)["train"].tokens.tolist() == whole
    assert len(cache_entries(cache)) == 1


def test_builders_at_the_same_time_agree(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a b c\n" * 500)
    with ThreadPoolExecutor(8) as pool:
        corpora = list(pool.map(lambda _: load_corpus(DataConfig(str(path)), cache), range(8)))
    assert all((corpus["train"].tokens == corpora[0]["train"].tokens).all() for corpus in corpora)
    assert len(cache_entries(cache)) == 1


def test_a_full_disk_is_one_sentence_and_leaves_nothing(load: Loader, cache: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        patch.object(os, "fsync", side_effect=full),
        pytest.raises(TrellisError, match=r"No space left.*TRELLIS_CACHE"),
    ):
        load("a b\n" * 20)
    assert cache_entries(cache) == []


def test_memory_does_not_grow_with_the_corpus(load: Loader) -> None:
    """The largest array made while encoding a corpus of many blocks is that of one block."""
    largest = 0

    def spy(words, dtype, count):
        nonlocal largest
        largest = max(largest, count)
        return np.array(list(words), dtype)

    with patch.object(encode.np, "fromiter", spy), patch("trellis.corpus.read.BLOCK", 1 << 12):
        corpus = load("a b c d\n" * 20_000)
    assert sum(split.tokens.size for split in corpus.splits.values()) == 100_000
    assert largest <= 1 << 12


DATA = os.environ.get("TRELLIS_DATA", "")


@pytest.mark.parametrize(
    ("name", "sizes", "words", "documents"),
    [
        ("ptb", [929_589, 73_760, 82_430], 10_000, [1, 1, 1]),
        ("wikitext-2", [2_088_628, 217_646, 245_569], 33_278, [600, 60, 60]),
    ],
)
def test_published_sizes(cache: Path, name: str, sizes: list[int], words: int, documents: list[int]) -> None:
    if not (Path(DATA) / name).is_dir() or not DATA:
        pytest.skip(f"TRELLIS_DATA has no {name}")
    corpus = load_corpus(DataConfig(name), cache)
    assert [split.tokens.size for split in corpus.splits.values()] == sizes
    assert [split.documents.size - 1 for split in corpus.splits.values()] == documents
    assert len(corpus.vocab) == words
    assert sum(corpus.vocab.counts) == sizes[0]
    shutil.rmtree(cache)


def test_characters_of_sentences_up_to_their_ends() -> None:
    places, size = encode._line_ends("a bc\nd\n", 2)
    assert (places.tolist(), size) == ([5, 7], 7)
    places, size = encode._line_ends(f"{read.DOCUMENT}a <eos> b\n", 2)  # two sentences share a line of ten characters
    assert (places.tolist(), size) == ([5, 10], 10)


def test_sentences_from_python() -> None:
    config = DataConfig(valid_fraction=0.0, test_fraction=0.0)
    corpus = corpus_of(["a b", ["b", 1], np.array(["c"]), " "], config)
    assert corpus.vocab.decode(corpus["train"].tokens) == ["a", "b", "<eos>", "b", "1", "<eos>", "c", "<eos>"]
    assert corpus_of(corpus, config, corpus.vocab) is corpus
    with pytest.raises(TrellisError, match="different vocabulary"):
        corpus_of(corpus, config, corpus_of(["x"], config).vocab)
    for wrong, message in (
        ([" ", []], "contain no words"),
        ([["a", 1.5]], "token 1.5 is neither"),
        ([b"a"], "neither"),
    ):
        with pytest.raises(TrellisError, match=message):
            corpus_of(wrong, config)


def test_the_order_of_held_out_documents_never_changes() -> None:
    """splitmix64 in Python's integers."""

    def mixed(number: int) -> int:
        x = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> shift)) * factor % 2**64
        return x ^ (x >> 31)

    assert mixed(0) == 0xE220A8397B1DCDAF  # the first number of the published generator with seed 0
    assert splits._shuffled(1000).tolist() == sorted(range(1000), key=mixed)
