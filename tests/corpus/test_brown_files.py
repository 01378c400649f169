"""Text files in, paths files in and out."""

from __future__ import annotations

import gzip
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import benchmarks.brown
import trellis.kernels.brown
from trellis.corpus.brown import brown_clusters
from trellis.corpus.brown_paths import Clustering, describe, read_paths
from trellis.errors import TrellisError

TEXT = "the cat sat\na dog sat\n\nthe dog ran on "
WCLUSTER_FILE = "00\tran\t1\n00\tsat\t2\n01\tthe dog\t2\n1\t<eos>\t3\n"


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_text_is_read_in_blocks_with_an_eos_for_every_newline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, packed: bool
) -> None:
    monkeypatch.setattr(benchmarks.brown, "TEXT_BLOCK", block)
    path = tmp_path / ("text.gz" if packed else "text")
    path.write_bytes(gzip.compress(TEXT.encode()) if packed else TEXT.encode())
    words, counts = benchmarks.brown.count_text(path)
    tokens = TEXT.replace("\n", " <eos> ").split()
    assert dict(zip(words, counts.words, strict=True)) == {word: tokens.count(word) for word in tokens}
    assert (np.diff(counts.words) <= 0).all()
    place = {word: i for i, word in enumerate(words)}
    expected = np.zeros((len(words), len(words)), int)
    for first, second in pairwise(tokens):
        expected[place[first], place[second]] += 1
    np.testing.assert_array_equal(counts.bigrams.toarray(), expected)


@given(seed=st.integers(0, 100), classes=st.integers(1, 6))
@settings(max_examples=10, deadline=None)
def test_a_saved_clustering_reads_back(tmp_path_factory: pytest.TempPathFactory, seed: int, classes: int) -> None:
    words = [f"w{i}" for i in range(12)]
    tokens = np.concatenate([np.arange(12), np.random.default_rng(seed).integers(0, 12, 100)])
    found = brown_clusters(tokens, classes)
    path = tmp_path_factory.mktemp("brown") / "paths"
    found.save(path, words)
    read_words, read = read_paths(path)
    order = [read_words.index(word) for word in words]
    np.testing.assert_array_equal(read.assignment[order], found.assignment)
    np.testing.assert_array_equal(read.counts[order], found.counts)
    assert read.paths == found.paths
    read.save(path, read_words)
    assert read_paths(path)[0] == read_words


def test_files_of_wcluster_work_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "paths").write_text(WCLUSTER_FILE)
    words, read = read_paths(tmp_path / "paths")
    assert words == ["ran", "sat", "the dog", "<eos>"]
    assert read.paths == ["00", "01", "1"]
    assert read.assignment.tolist() == [0, 0, 1, 2]
    assert read.counts.tolist() == [1, 2, 2, 3]
    assert describe(read, words, top=1) == ["00       2  sat", "01       1  the dog", "1        1  <eos>"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("01\tword", "line 2: expected .* found 2"),
        ("", "line 2: expected .* found 1"),
        ("0x\tword\t3", "line 2: the path '0x'"),
        ("01\tword\tmany", "line 2: the count 'many'"),
        ("01\tword\t-1", "line 2: the count '-1'"),
        ("01\tfine\t1", "line 2: duplicate word 'fine'"),
    ],
)
def test_malformed_paths_are_named_by_line(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "paths").write_text(f"00\tfine\t3\n{line}\n10\tlast\t1\n")
    with pytest.raises(TrellisError, match=sentence):
        read_paths(tmp_path / "paths")


def test_files_without_a_clustering_get_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"0\t\xff\t1\n")
    for name, sentence in (("empty", "is empty"), ("binary", "not UTF-8"), ("gone", "Cannot read")):
        with pytest.raises(TrellisError, match=sentence):
            read_paths(tmp_path / name)


def test_words_that_the_format_cannot_hold_are_refused_and_leave_the_file_alone(tmp_path: Path) -> None:
    clustering = Clustering(np.array([0, 1]), ["0", "1"], np.array([2, 1]))
    (tmp_path / "paths").write_text("old")
    for words, sentence in ((["a\tb", "c"], "Cannot write"), (["a", ""], "Cannot write"), (["a"], "1 words")):
        with pytest.raises(TrellisError, match=sentence):
            clustering.save(tmp_path / "paths", words)
    assert (tmp_path / "paths").read_text() == "old"


def test_without_numba_the_kernels_run_as_plain_python(monkeypatch, caplog) -> None:
    compiled, tokens = trellis.kernels.brown.kernels(), np.random.default_rng(0).integers(12, size=200)
    monkeypatch.delattr(trellis.kernels.brown, "numba")
    monkeypatch.delitem(sys.modules, "trellis.kernels.brown.numba")
    monkeypatch.setitem(sys.modules, "numba", None)
    plain = trellis.kernels.brown.kernels()
    assert "not installed" in caplog.text
    assert hasattr(compiled.xlogx, "py_func")
    assert not hasattr(plain.xlogx, "py_func")
    ours, theirs = (brown_clusters(tokens, 4, kernels=kernels) for kernels in (plain, compiled))
    np.testing.assert_array_equal(ours.assignment, theirs.assignment)
    assert ours.paths == theirs.paths
