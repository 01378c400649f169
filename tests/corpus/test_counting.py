"""Counts by dask are those of one process, on a local cluster too, and when one of its workers is killed."""

from __future__ import annotations

import gzip
import logging
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from trellis.config import DataConfig
from trellis.corpus import Split, Vocabulary, load_corpus
from trellis.corpus.brown_counts import count_bigrams
from trellis.corpus.counting import bigrams_of_files, count_words, recipe_for, vocabulary_of_files
from trellis.corpus.dask import total_with_dask
from trellis.corpus.moments import choose_rows, count_moments, count_with_dask
from trellis.errors import TrellisError
from trellis.families.ngram.kneser_ney import count_ngrams, ngrams_of_files

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


def check_counts(paths: list[Path], tmp_path: Path) -> None:
    """All kinds of counts against those of the encoded text."""
    config, vocab, split = whole(paths, tmp_path)
    found = vocabulary_of_files(paths, config)
    assert found.to_json() == vocab.to_json()
    bigrams, wanted = bigrams_of_files(paths, vocab, config), count_bigrams(split.tokens, len(vocab))
    assert np.array_equal(bigrams.words, wanted.words)
    assert (bigrams.bigrams != wanted.bigrams).nnz == 0
    (trie, counts), (same, others) = ngrams_of_files(paths, vocab, config, 4), count_ngrams(vocab, split, 4, False)
    assert trie.sizes == same.sizes
    assert bool((trie.keys == same.keys).all())
    assert all(np.array_equal(one, other) for one, other in zip(counts, others, strict=True))


def test_counts_of_files_are_those_of_the_text(paths: list[Path], tmp_path: Path) -> None:
    check_counts(paths, tmp_path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL) as workers,
        Client(workers),
    ):
        yield


def count_or_die(path: Path, recipe: object, flag: Path) -> object:
    """The words of a file; the first process that counts the third file is killed."""
    if path.name.startswith("2") and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), 9)
    return count_words(path, recipe)  # type: ignore[arg-type]


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_changes_nothing(paths: list[Path], tmp_path: Path) -> None:
    recipe = recipe_for(paths, DataConfig(str(paths[0].parent)))
    wanted = sum((count_words(path, recipe) for path in paths if path.stat().st_size), Counter())
    flag = tmp_path / "killed"
    assert total_with_dask(partial(count_or_die, recipe=recipe, flag=flag), paths) == wanted
    assert flag.exists()
    text = np.random.default_rng(0).integers(0, 9, 100)
    rows = choose_rows(np.bincount(text, minlength=9))
    assert np.array_equal(count_with_dask(text, rows, 3).counts, count_moments(text, rows, 3).counts)


def test_nothing_to_count_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="at least one file"):
        total_with_dask(len, [])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(TrellisError, match="no words"):
        vocabulary_of_files([tmp_path / "empty.txt"], DataConfig())
