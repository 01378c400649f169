"""Brown clustering as a whole: against all partitions, its options, and what it refuses."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from math import log
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import xlogy

from benchmarks.brown import count_text
from trellis.corpus import brown, brown_counts
from trellis.corpus.brown import (
    METHODS,
    _chunks,
    average_mutual_information,
    brown_clusters,
    cloned,
    count_bigrams,
)
from trellis.errors import TrellisError

EXACT = 1e-9  # nats
SETTLED = 1e-4  # fraction of the mutual information that a settled exchange may leave to a single move
WCLUSTER_AMI = 0.8391  # of wcluster on the PTB validation text with 50 classes

texts = st.lists(st.integers(0, 7), min_size=10, max_size=80).map(lambda text: np.array([*range(8), *text]))
every_method = pytest.mark.parametrize("method", METHODS)


PARTITIONS = np.array([labels for labels in product(range(3), repeat=8) if list(dict.fromkeys(labels)) == [0, 1, 2]])


def enumerated_ami(tokens: np.ndarray) -> np.ndarray:
    """Mutual information of every partition of eight words into three classes [966], by the definition."""
    members = np.eye(3)[PARTITIONS]
    joint = np.einsum("pvc,vw,pwd->pcd", members, count_bigrams(tokens, 8).bigrams.toarray(), members) / (
        len(tokens) - 1
    )
    before, after = joint.sum(axis=2), joint.sum(axis=1)
    return xlogy(joint, joint).sum(axis=(1, 2)) - xlogy(before, before).sum(axis=1) - xlogy(after, after).sum(axis=1)


def direct_ami(tokens: np.ndarray, assignment: np.ndarray) -> float:
    """Mutual information of adjacent classes, by its definition."""
    pairs = Counter(pairwise(assignment[tokens].tolist()))
    left, right = Counter(), Counter()
    for (c, d), n in pairs.items():
        left[c] += n
        right[d] += n
    total = len(tokens) - 1
    return sum(n / total * log(n * total / (left[c] * right[d])) for (c, d), n in pairs.items())


@given(tokens=texts, labels=st.lists(st.integers(0, 2), min_size=8, max_size=8))
@settings(deadline=None)
def test_mutual_information_is_that_of_the_definition_and_of_the_class_bigram_model(
    tokens: np.ndarray, labels: list[int]
) -> None:
    assignment = np.array(labels)
    ami = average_mutual_information(count_bigrams(tokens).bigrams, assignment)
    assert ami == pytest.approx(direct_ami(tokens, assignment), abs=EXACT)
    first, second = tokens[:-1], tokens[1:]
    pairs = Counter(zip(assignment[first], assignment[second], strict=True))
    befores, afters, words = Counter(assignment[first]), Counter(assignment[second]), Counter(second)
    likelihood = sum(
        log(pairs[c, d] / befores[c] * words[w] / afters[d])
        for c, d, w in zip(assignment[first], assignment[second], second, strict=True)
    )
    entropy = -sum(n / len(second) * log(n / len(second)) for n in words.values())
    assert likelihood / len(second) == pytest.approx(ami - entropy, abs=EXACT)


@every_method
@given(tokens=texts)
@settings(max_examples=30, deadline=None)
def test_no_method_claims_more_than_the_best_of_all_partitions(method: str, tokens: np.ndarray) -> None:
    found = brown_clusters(tokens, 3, method=method)
    assert found.ami <= enumerated_ami(tokens).max() + EXACT
    assert found.ami == pytest.approx(
        average_mutual_information(count_bigrams(tokens).bigrams, found.assignment), abs=EXACT
    )


def test_exchange_ends_at_or_near_the_best_of_all_partitions_of_random_texts() -> None:
    rng, ratios = np.random.default_rng(0), []
    for _ in range(20):
        tokens = np.concatenate([np.arange(8), rng.choice(8, 40, p=rng.dirichlet(np.ones(8)))])
        ami = max(brown_clusters(tokens, 3, seed=seed).ami for seed in range(4))
        ratios.append(ami / enumerated_ami(tokens).max())
    assert np.mean(ratios) > 0.9
    assert np.sum(np.array(ratios) > 1 - EXACT) >= 7


@pytest.mark.parametrize("seed", range(5))
def test_exchange_finds_the_best_partition_of_a_text_with_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = np.array([0, 1, 2] * 200)
    tokens = np.where(classes == 2, 6 + rng.integers(0, 2, 600), 3 * classes + rng.integers(0, 3, 600))
    found, best = brown_clusters(tokens, 3).assignment, PARTITIONS[enumerated_ami(tokens).argmax()]
    np.testing.assert_array_equal(found[:, None] == found[None, :], best[:, None] == best[None, :])


@given(tokens=texts)
@settings(max_examples=20, deadline=None)
def test_no_single_move_improves_the_result_of_exchange(tokens: np.ndarray) -> None:
    found = brown_clusters(tokens, 3, max_sweeps=100)
    bigrams = count_bigrams(tokens).bigrams
    for word, target in product(range(8), range(3)):
        moved = found.assignment.copy()
        moved[word] = target
        assert average_mutual_information(bigrams, moved) <= found.ami * (1 + SETTLED) + EXACT


@every_method
def test_classes_are_all_used_and_their_paths_are_the_leaves_of_a_binary_tree(method: str) -> None:
    tokens = np.random.default_rng(4).zipf(1.3, 3000) % 60
    found = brown_clusters(tokens, 7, vocab_size=60, method=method)
    assert set(found.assignment) == set(range(7))
    assert found.paths == sorted(found.paths)
    assert sum(2.0 ** -len(path) for path in found.paths) == 1
    assert not any(b.startswith(a) for a, b in pairwise(found.paths))


@given(st.integers(0, 300), st.integers(0, 300))
def test_words_are_placed_in_chunks_that_are_small_beside_those_placed(number: int, placed: int) -> None:
    words, done = np.arange(number), 0
    for chunk in _chunks(words, placed):
        assert 1 <= len(chunk) <= max(1, (placed + done) // 16)
        np.testing.assert_array_equal(chunk, words[done : done + len(chunk)])
        done += len(chunk)
    assert done == number


@every_method
def test_same_seed_same_answer_whatever_the_number_of_threads(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    monkeypatch.setattr("trellis.kernels.brown.numba.WORTH_SHARING", 0)
    tokens = np.random.default_rng(8).zipf(1.2, 4000) % 300
    before, answers = numba.get_num_threads(), []
    try:
        for threads in (1, before, before):
            numba.set_num_threads(threads)
            answers.append(brown_clusters(tokens, 12, seed=5, method=method))
    finally:
        numba.set_num_threads(before)
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer.assignment, answers[0].assignment)
        assert answer.paths == answers[0].paths


@every_method
def test_options_keep_words_alone_cap_classes_and_gather_rare_words(method: str) -> None:
    tokens = np.random.default_rng(2).zipf(1.3, 2000) % 80
    counts = count_bigrams(tokens, 82)
    found = brown_clusters(counts, 10, method=method, alone=[0, 7], max_class_size=12, min_count=6)
    sizes = np.bincount(found.assignment)
    rare = np.setdiff1d(np.flatnonzero(counts.words < 6), [0, 7])
    assert sizes[found.assignment[[0, 7]]].tolist() == [1, 1]
    assert {80, 81} <= set(rare)
    assert np.unique(found.assignment[rare]).size == 1
    assert sizes[found.assignment[rare[0]]] == len(rare)
    assert np.delete(sizes, found.assignment[rare[0]]).max() <= 12


def test_one_class_per_word_is_the_upper_bound_and_the_cloned_preset() -> None:
    tokens = np.random.default_rng(1).integers(0, 20, 500)
    preset = cloned(20)
    np.testing.assert_array_equal(preset.assignment, np.arange(20))
    assert len(set(preset.paths)) == 20
    bigrams = count_bigrams(tokens).bigrams
    full = brown_clusters(tokens, 20)
    assert full.ami == pytest.approx(average_mutual_information(bigrams, preset.assignment), abs=EXACT)
    assert full.ami > brown_clusters(tokens, 10).ami > brown_clusters(tokens, 1).ami - EXACT
    assert brown_clusters(tokens, 1).paths == ["0"]


@given(tokens=texts, cuts=st.lists(st.integers(0, 88), max_size=4))
@settings(deadline=None)
def test_streamed_counts_are_those_of_the_whole(tokens: np.ndarray, cuts: list[int]) -> None:
    streamed = count_bigrams(iter(np.split(tokens, sorted(cuts))))
    expected = np.zeros((8, 8), int)
    for pair in pairwise(tokens):
        expected[pair] += 1
    np.testing.assert_array_equal(streamed.bigrams.toarray(), expected)
    np.testing.assert_array_equal(streamed.words, np.bincount(tokens))


def test_a_memmap_is_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(0).integers(0, 50, 1000).astype(np.int32)
    tokens.tofile(tmp_path / "tokens")
    whole = count_bigrams(tokens, 50)
    monkeypatch.setattr(brown_counts, "TOKEN_BLOCK", 64)
    blocks = count_bigrams(np.memmap(tmp_path / "tokens", np.int32), 50)
    assert (whole.bigrams != blocks.bigrams).nnz == 0
    np.testing.assert_array_equal(whole.words, blocks.words)


@pytest.mark.parametrize(("tokens", "wrong"), [([0, 9], 9), ([-1, 9], -1)])
def test_an_id_outside_the_vocabulary_is_named(tokens: list[int], wrong: int) -> None:
    with pytest.raises(TrellisError, match=f"Word id {wrong} is not"):
        count_bigrams(np.array(tokens), 5)


@pytest.mark.parametrize(
    ("tokens", "options", "sentence"),
    [
        (np.array([], int), {"classes": 2}, "empty"),
        (np.array([3, 3, 3]), {"classes": 1}, "fewer than two distinct words"),
        (np.arange(5), {"classes": 6}, "more than the 5"),
        (np.arange(5), {"classes": 4, "min_count": 2}, "more than the 1"),
        (np.arange(5), {"classes": 0}, "too few"),
        (np.arange(5), {"classes": 2, "alone": [0, 1]}, "at least 3"),
        (np.arange(5), {"classes": 2, "alone": [5]}, "outside the vocabulary"),
        (np.arange(5), {"classes": 2, "alone": [-1]}, "outside the vocabulary"),
        (np.arange(5), {"classes": 2, "max_class_size": 2}, "do not fit"),
        (np.arange(5), {"classes": 2, "method": "magic"}, "clustering method is 'magic', which is not recognised"),
        (np.arange(5), {"classes": 2, "vocab_size": 4}, "not in the vocabulary"),
        (np.arange(-1, 5), {"classes": 2}, "not in the vocabulary"),
        (np.linspace(0, 1, 5), {"classes": 2}, "integer array"),
    ],
)
def test_bad_input_gets_one_sentence(tokens: np.ndarray, options: dict, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        brown_clusters(tokens, **options)


@pytest.mark.skipif(not os.environ.get("TRELLIS_DATA"), reason="TRELLIS_DATA is not set")
def test_penn_treebank_classes_keep_more_information_than_those_of_wcluster() -> None:
    words, counts = count_text(Path(os.environ["TRELLIS_DATA"]) / "ptb" / "valid.txt")
    found = brown_clusters(counts, 50, alone=[words.index("<eos>")])
    assert found.ami > WCLUSTER_AMI
    assert (found.assignment == found.assignment[words.index("<eos>")]).sum() == 1


def test_progress_shows_the_mutual_information(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = list[Mock]()

    @contextmanager
    def recorded(*_: object) -> Iterator[Mock]:
        bars.append(Mock())
        yield bars[-1]

    monkeypatch.setattr(brown, "progress", recorded)
    found = brown_clusters(np.random.default_rng(0).zipf(1.5, 3000).clip(max=40) - 1, 5)
    shown = [call.kwargs["ami"] for bar in bars for call in bar.update.call_args_list if "ami" in call.kwargs]
    assert shown[-1] == pytest.approx(found.ami, rel=1e-9)
    assert np.all(np.diff(shown) > -1e-12)
    assert bars[-1].advance.call_count == 4  # merges of the tree


def test_words_that_are_not_agglomerated_have_no_class() -> None:
    counts = brown_counts.count_bigrams(np.random.default_rng(0).integers(0, 12, 2000), 12)
    start = brown._start(counts.words, 4, set(), None, 1, 0)
    job = brown.Job(counts, brown.split_bigrams(counts.bigrams), brown.fastest_kernels())
    first, *_ = words = start.waiting()
    found = brown.agglomerate(job, start, words[:3])
    assert set(found.waiting()) == set(words[3:])
    assert 0 <= found.assignment[first] < 4


def test_only_the_first_words_are_agglomerated(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = list[int]()

    def recorded(job: brown.Job, start: brown.Start, words: np.ndarray) -> brown.Start:
        merged.extend(words)
        return agglomerate(job, start, words)

    agglomerate = brown.agglomerate
    monkeypatch.setattr(brown, "agglomerate", recorded)
    monkeypatch.setattr(brown, "MERGED_FIRST", 10)
    tokens = np.random.default_rng(0).zipf(1.5, 3000).clip(max=40) - 1
    found = brown_clusters(tokens, 5)
    assert len(merged) == 10
    assert set(found.assignment) == set(range(5))


def test_cloned_classes_keep_the_counts() -> None:
    counts = np.array([3, 0, 2])
    assert cloned(3, counts).counts is counts
    assert cloned(3).counts.tolist() == [0, 0, 0]
