"""States matched to tags, by counts that can be checked by hand and by trying every assignment."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from taggers import tagger
from trellis.corpus.tagged import Tagged
from trellis.families.hmm_tagger.fit import state_counts
from trellis.tasks.tagging import many_to_one, num_right, one_to_one

COUNTS = np.array([[5.0, 4, 0], [4, 0, 1]])


def test_several_states_may_stand_for_a_tag() -> None:
    assert many_to_one(COUNTS).tolist() == [0, 0, 1]
    assert num_right(COUNTS, many_to_one(COUNTS)) == 10


def test_or_one_alone() -> None:
    assert one_to_one(COUNTS).tolist() == [1, 0, -1]
    assert num_right(COUNTS, one_to_one(COUNTS)) == 8


def test_the_best_assignment_of_all() -> None:
    counts = np.random.default_rng(0).integers(0, 20, (4, 4)).astype(float)
    best = max(num_right(counts, np.array(tags)) for tags in permutations(range(4)))
    assert num_right(counts, one_to_one(counts)) == best


def test_counts_follow_the_best_paths() -> None:
    model = tagger()
    text = Tagged([["the", "cat", "sees"], ["a", "cat"]], [["D", "N", "V"], ["D", "X"]])
    counts, paths = state_counts(model, text), model.state_paths(text.words)
    assert counts.shape == (4, 9)
    assert counts.sum() == 4
    assert counts[2, paths[0][1]] >= 1
    tokens = model.encode_line("the cat sees")
    symbols = model.lexicon.symbols(["the", "cat", "sees"])
    assert tokens[0].tolist() == symbols[:-1].tolist()
