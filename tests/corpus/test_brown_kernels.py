"""The incremental sums of Brown clustering against counting everything afresh, and numba against NumPy."""

from __future__ import annotations

from itertools import combinations
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from trellis.corpus.brown import average_mutual_information, brown_clusters, count_bigrams
from trellis.corpus.brown_merging import Window
from trellis.kernels.brown import kernels
from trellis.kernels.brown.state import TABLED, split_bigrams, tabulate, xlogx_table
from trellis.testing import brown as naive

EXACT = 1e-9  # nats: incremental against recomputed mutual information
BACKENDS = [naive, kernels()]

both_backends = pytest.mark.parametrize("backend", BACKENDS, ids=["naive", "fastest"])


def random_tokens(seed: int, words: int = 30, length: int = 600) -> np.ndarray:
    """A text with Zipfian words that prefer some followers, every word at least once."""
    rng = np.random.default_rng(seed)
    zipf = 1 / np.arange(1, words + 1)
    follow = rng.dirichlet(zipf, size=words)
    text = [0]
    for _ in range(length):
        text.append(rng.choice(words, p=follow[text[-1]]))
    return np.concatenate([text, rng.permutation(words)])


@both_backends
@pytest.mark.parametrize("seed", range(3))
def test_every_move_changes_the_mutual_information_by_exactly_its_gain(backend: ModuleType, seed: int) -> None:
    counts = count_bigrams(random_tokens(seed))
    bigrams, total, classes = split_bigrams(counts.bigrams), counts.bigrams.sum(), 5
    table, room = xlogx_table(int(total)), np.full(classes, 30)
    state = tabulate(counts.bigrams, np.arange(30) % classes, classes)
    ami, moves = average_mutual_information(counts.bigrams, state.assignment), 0
    for word in np.tile(np.arange(30), 3):
        before = state.assignment.copy()
        gain = backend.exchange(np.array([word]), bigrams, state, room, table) / total
        ami += gain
        moved = (before != state.assignment).any()
        moves += moved
        assert (gain > 0) == moved
        assert ami == pytest.approx(average_mutual_information(counts.bigrams, state.assignment), abs=EXACT)
        fresh = tabulate(counts.bigrams, state.assignment, classes)
        for kept, counted in zip(state, fresh, strict=True):
            np.testing.assert_array_equal(kept, counted)
    assert moves > 10


@both_backends
def test_gains_of_all_classes_match_recomputed_mutual_information(backend: ModuleType) -> None:
    counts = count_bigrams(random_tokens(7, words=12, length=200))
    total, table = counts.bigrams.sum(), xlogx_table(int(counts.bigrams.sum()))
    state = tabulate(counts.bigrams, np.arange(12) % 4, 4)
    for word in range(12):
        gains = backend.insertion_gains(word, split_bigrams(counts.bigrams), state, table) / total
        amis = []
        for target in range(4):
            moved = state.assignment.copy()
            moved[word] = target
            amis.append(average_mutual_information(counts.bigrams, moved))
        np.testing.assert_allclose(gains - gains[word % 4], np.array(amis) - amis[word % 4], rtol=0, atol=EXACT)


@both_backends
def test_words_chosen_together_still_only_raise_the_mutual_information(backend: ModuleType) -> None:
    counts = count_bigrams(random_tokens(3))
    bigrams, total = split_bigrams(counts.bigrams), counts.bigrams.sum()
    state = tabulate(counts.bigrams, np.arange(30) % 6, 6)
    before = average_mutual_information(counts.bigrams, state.assignment)
    gain = backend.exchange(np.arange(30), bigrams, state, np.full(6, 30), xlogx_table(int(total))) / total
    assert gain > 0
    assert before + gain == pytest.approx(average_mutual_information(counts.bigrams, state.assignment), abs=EXACT)


@both_backends
def test_counts_beyond_the_lookup_table_are_computed(backend: ModuleType) -> None:
    counts = count_bigrams(random_tokens(1, words=8, length=100))
    large = counts.bigrams * (TABLED // 10)
    state = tabulate(large, np.arange(8) % 3, 3)
    table = xlogx_table(int(large.sum()))
    assert len(table) < state.follows.max()
    gains = backend.insertion_gains(0, split_bigrams(large), state, table)
    moved = state.assignment.copy()
    moved[0] = 1
    expected = average_mutual_information(large, moved) - average_mutual_information(large, state.assignment)
    assert (gains[1] - gains[0]) / large.sum() == pytest.approx(expected, abs=EXACT)


@both_backends
def test_each_merge_is_the_cheapest_and_loses_what_it_says(backend: ModuleType) -> None:
    counts = count_bigrams(random_tokens(5, words=12))
    assignment = np.arange(12)
    window = Window(tabulate(counts.bigrams, assignment, 12), 12, int(counts.bigrams.sum()), backend)
    room = np.full(12, 12)
    for _ in range(11):
        before = average_mutual_information(counts.bigrams, assignment)
        losses = {}
        for a, b in combinations(np.unique(assignment), 2):
            merged = np.where(assignment == b, a, assignment)
            losses[a, b] = before - average_mutual_information(counts.bigrams, merged)
        stays, gone, loss = window.merge_cheapest(room)
        assert loss / counts.bigrams.sum() == pytest.approx(losses[stays, gone], abs=EXACT)
        assert losses[stays, gone] == pytest.approx(min(losses.values()), abs=EXACT)
        assignment[assignment == gone] = stays


@both_backends
def test_words_that_come_into_the_window_keep_its_losses_exact(backend: ModuleType) -> None:
    tokens = random_tokens(2, words=10)
    counts = count_bigrams(tokens)
    bigrams, slots, free = split_bigrams(counts.bigrams), 5, 4
    assignment = np.where(np.arange(10) < 4, np.arange(10), -1)
    window = Window(tabulate(counts.bigrams, assignment, slots), 4, int(counts.bigrams.sum()), backend)
    for word in range(4, 10):
        window.insert(word, free, bigrams)
        labels = window.classes.assignment
        inside = counts.bigrams[: word + 1][:, : word + 1]
        stays, gone, loss = window.merge_cheapest(np.full(slots, 10))
        merged = np.where(labels == gone, stays, labels)[: word + 1]
        lost = average_mutual_information(inside, labels[: word + 1]) - average_mutual_information(inside, merged)
        assert loss / inside.sum() == pytest.approx(lost, abs=EXACT)
        labels[labels == gone] = stays
        free = gone


@given(seed=st.integers(0, 1000), method=st.sampled_from(["exchange", "agglomerative"]), cap=st.sampled_from([None, 8]))
@settings(max_examples=15, deadline=None)
def test_compiled_kernels_give_the_answer_of_the_reference(seed: int, method: str, cap: int | None) -> None:
    counts = count_bigrams(random_tokens(seed, words=25, length=400))
    ours, reference = (
        brown_clusters(counts, 6, method=method, seed=seed, alone=[3], max_class_size=cap, kernels=backend)
        for backend in (kernels(), naive)
    )
    np.testing.assert_array_equal(ours.assignment, reference.assignment)
    assert ours.paths == reference.paths
