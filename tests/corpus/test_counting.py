"""Counts by dask are those of one process, on a local cluster too, and when one of its workers is killed."""

from __future__ import annotations

import gzip
import logging
import os
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from trellis.config import DataConfig
from trellis.corpus import Split, Vocabulary, counting, load_corpus, read
from trellis.corpus.brown_counts import count_bigrams
from trellis.corpus.counting import bigrams_of_files, moments_of_files, recipe_for, vocabulary_of_files
from trellis.corpus.dask import total_with_dask
from trellis.errors import TrellisError
from trellis.families.lds.learning import count_text
from trellis.families.ngram import kneser_ney
from trellis.families.ngram.kneser_ney import count_ngrams, ngrams_of_files
from trellis.families.ngram.trie import Trie

pytest.importorskip("dask.distributed", reason="dask is not installed")
WORDS = np.array(["the", "a", "dog", "cat", "man", "sees", "runs", "sleeps", "red", "big", "Once"])


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """A text in five files, two of them compressed, and an empty file between them."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(5):
        random = np.random.default_rng(number)
        text = "".join(" ".join(random.choice(WORDS[:-1], 1 + n % 7)) + "\n" for n in range(20 + number))
        text = text + f"Once{number}\n"
        name = folder / f"{number}.txt{'.gz' * (number % 2)}"
        name.write_bytes(gzip.compress(text.encode()) if number % 2 else text.encode())
    (folder / "1-empty.txt").touch()
    return sorted(folder.iterdir())


def whole(paths: list[Path], tmp_path: Path) -> tuple[DataConfig, Vocabulary, Split]:
    config = DataConfig(str(paths[0].parent), valid_fraction=0.0, test_fraction=0.0)
    corpus = load_corpus(config, tmp_path / "cache")
    return config, corpus.vocab, corpus["train"]


def check_counts(paths: list[Path], tmp_path: Path, before: Callable[[], object] = lambda: None) -> None:
    """All kinds of counts against those of the encoded text; `before` is called before those of pairs and n-grams."""
    config, vocab, split = whole(paths, tmp_path)
    found = vocabulary_of_files(paths, config)
    assert found.to_json() == vocab.to_json()
    before()
    bigrams, wanted = bigrams_of_files(paths, vocab, config), count_bigrams(split.tokens, len(vocab))
    assert np.array_equal(bigrams.words, wanted.words)
    assert (bigrams.bigrams != wanted.bigrams).nnz == 0
    before()
    (trie, counts), (same, others) = ngrams_of_files(paths, vocab, config, 4), count_ngrams(vocab, split, 4, False)
    assert trie.sizes == same.sizes
    assert bool((trie.keys == same.keys).all())
    assert all(np.array_equal(one, other) for one, other in zip(counts, others, strict=True))
    before()
    for most in (0, 5):
        moments, expected = moments_of_files(paths, vocab, config, 7, most), count_text(vocab, split, 4, 4, most)
        assert np.array_equal(moments.rows, expected.rows)
        assert np.array_equal(moments.counts, expected.counts)
        assert moments.circular == expected.circular
        assert all((one != other).nnz == 0 for one, other in zip(moments.lags, expected.lags, strict=True))


def test_counts_of_files_are_those_of_the_text(paths: list[Path], tmp_path: Path) -> None:
    check_counts(paths, tmp_path)


def test_files_named_by_strings(paths: list[Path], tmp_path: Path) -> None:
    config, vocab, split = whole(paths, tmp_path)
    names = [str(path) for path in paths]
    assert vocabulary_of_files(names, config).to_json() == vocab.to_json()
    assert moments_of_files(names, vocab, config, 1).tokens == split.tokens.size
    assert ngrams_of_files(names, vocab, config, 2)[1][0].sum() == split.tokens.size
    assert bigrams_of_files(names, vocab, config).words.sum() == split.tokens.size


def test_nothing_to_count_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="at least one file"):
        total_with_dask(len, [])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(TrellisError, match="no words"):
        vocabulary_of_files([tmp_path / "empty.txt"], DataConfig())
    for paths in ([], "a.txt", tmp_path, iter(["a.txt"])):
        with pytest.raises(TrellisError, match=r"no files to count .* pass a list"):
            vocabulary_of_files(paths, DataConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize(("lags", "words", "named"), [(0, 0, "lags"), (1001, 0, "lags"), (7, -1, "words")])
def test_impossible_moments(lags: int, words: int, named: str, paths: list[Path], tmp_path: Path) -> None:
    config, vocab, _ = whole(paths, tmp_path)
    with pytest.raises(TrellisError, match=f"number of {named}"):
        moments_of_files(paths, vocab, config, lags, words)


@pytest.mark.parametrize("count", ["n-grams", "moments"])
def test_memory_does_not_grow_with_a_file(count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task holds one block of the file, and counts whose size does not depend on its length."""
    monkeypatch.setattr(read, "BLOCK", 1 << 14)
    words = WORDS[:-1].tolist()
    vocab = Vocabulary(["<eos>", *words], [1] * 11)
    peaks = []
    for size in (1, 8):
        path = tmp_path / f"{size}.txt"
        path.write_text(f"{' '.join(words)}\n" * 2000 * size)
        recipe = recipe_for([path], DataConfig())
        tracemalloc.start()
        if count == "n-grams":
            keys, seen = kneser_ney.count_order_of_file(path, Trie.of_words(11), vocab, recipe)
            assert (len(keys), seen.tolist()) == (11, [2000 * size] * 11)
        else:
            passage = counting.count_passage(counting.ids_of_file(path, vocab, recipe), np.arange(11), 3)
            assert passage.moments.tokens == 22_000 * size
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL) as workers,
        Client(workers),
    ):
        yield


def count_or_die(path: Path, count: Callable[[Path], object], flag: Path) -> object:
    """The counts of a file, read in blocks of a few words; the first process that counts the third file is killed."""
    if path.name.startswith("2") and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), 9)
    with mock.patch.object(read, "BLOCK", 50):
        return count(path)


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_changes_nothing(paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is killed while bigrams are counted, one for n-grams, and one for moments."""
    (flag := tmp_path / "killed").touch()

    def total(count: Callable[[Path], object], items: list[Path], *plus: Any) -> object:
        return total_with_dask(partial(count_or_die, count=count, flag=flag), items, *plus)

    monkeypatch.setattr(counting, "total_with_dask", total)
    monkeypatch.setattr(kneser_ney, "total_with_dask", total)
    check_counts(paths, tmp_path, before=flag.unlink)
    assert flag.exists()


class Large:
    """Data that tasks share; knows how often this process has serialised any."""

    times = 0

    def __reduce__(self) -> tuple:
        Large.times += 1
        return Large, ()


def ignoring(item: int, given: Large) -> int:
    return item


@pytest.mark.usefixtures("cluster")
def test_what_tasks_share_is_not_sent_with_every_task() -> None:
    assert total_with_dask(partial(ignoring, given=Large()), range(20)) == sum(range(20))
    assert 0 < Large.times < 10  # by the client, and by its scheduler
