"""States from contexts, against a search over all suffixes in plain Python."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from trellis.emissions import Partition
from trellis.families.hmm.parameters import TableParams, contexts
from trellis.testing.close import assert_close


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A text in which what follows 1 depends on the symbol before it."""
    monkeypatch.setattr(contexts, "DEEPEST", 3)
    rng = np.random.default_rng(3)
    found = [0, 1]
    for _ in range(600):
        common = {(0, 1): 2, (2, 1): 0}.get((found[-2], found[-1]), 1)
        found.append(int(common if rng.random() < 0.8 else rng.integers(3)))
    return found


def suffix_gains(text: list[int]) -> dict[tuple[int, ...], float]:
    """The gain of every common suffix, oldest symbol first."""
    counts: Counter[tuple[int, ...]] = Counter()
    after: Counter[tuple[int, ...]] = Counter()
    for end in range(len(text)):
        for length in range(1, min(contexts.DEEPEST, end + 1) + 1):
            suffix = tuple(text[end + 1 - length : end + 1])
            counts[suffix] += 1
            if end + 1 < len(text):
                after[(*suffix, text[end + 1])] += 1
    gains = {(symbol,): math.inf for symbol in range(3)}
    for suffix in (one for one in counts if len(one) > 1 and counts[one] >= contexts.RAREST):
        own = {x: after[(*suffix, x)] for x in range(3) if after[(*suffix, x)]}
        theirs = {x: after[(*suffix[1:], x)] for x in range(3)}
        total, their_total = sum(own.values()), sum(theirs.values())
        gains[suffix] = sum(
            n * math.log(n / total / (theirs[x] / their_total)) - contexts.PRICE for x, n in own.items()
        )
    return gains


@pytest.mark.parametrize("clones", [1, 2, 4, 100])
def test_states_are_the_longest_chosen_suffixes(text: list[int], clones: int) -> None:
    gains = suffix_gains(text)
    useful = {one: max(gains[other] for other in gains if other[-len(one) :] == one) for one in gains}
    chosen = [
        one
        for symbol in range(3)
        for one in sorted((s for s in useful if s[-1] == symbol and useful[s] > 0), key=lambda s: -useful[s])[:clones]
    ]
    states, sizes = contexts.context_states(np.array(text), 3, clones)
    assert sizes.tolist() == [sum(one[-1] == symbol for one in chosen) for symbol in range(3)]
    names: dict[int, tuple[int, ...]] = {}
    for end, state in enumerate(states.tolist()):
        suffixes = [tuple(text[end + 1 - n : end + 1]) for n in range(min(contexts.DEEPEST, end + 1), 0, -1)]
        longest = next(one for one in suffixes if one in chosen)
        assert names.setdefault(state, longest) == longest
    assert len(set(names.values())) == len(names)


def test_transitions_are_smoothed_counts(text: list[int]) -> None:
    states, sizes = contexts.context_states(np.array(text), 3, 4)
    partition = Partition(torch.arange(3), sizes.tolist())
    params = TableParams(partition.num_states, 3, partition)
    contexts.initialise(params, partition, states)
    start, transition, _ = params.parts()
    counts = np.zeros((partition.num_states, partition.num_states))
    np.add.at(counts, (states[:-1], states[1:]), 1.0)
    frequency = (np.bincount(states, minlength=len(counts)) + 1) / (len(states) + len(counts))
    classes = partition.state_class().numpy()
    expected = np.empty_like(counts)
    for z, row in enumerate(counts):
        shared = counts[classes == classes[z]].sum(0)
        kinds, own = max(1, (shared > 0).sum()), max(1, (row > 0).sum())
        lower = (shared + kinds * frequency) / (shared.sum() + kinds)
        expected[z] = (row + own * lower) / (row.sum() + own)
    assert_close(transition.dense().double(), torch.from_numpy(expected), 1e-5)
    assert_close(start.double(), torch.from_numpy(frequency), 1e-5)
