"""Scores of bags of attributes, and the gradient of their weights, against loops over every attribute."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trellis.kernels import bags
from trellis.kernels.bags import Bags, Pairs, Rows

ATTRIBUTES, TOKENS = 30, 50


def drawn(labels: int, seed: int) -> tuple[Bags, Pairs, np.ndarray]:
    """Bags of up to 6 attributes; attribute a has about a / 30 of all labels, and its weights."""
    random = np.random.RandomState(seed)
    sizes = random.randint(0, 7, TOKENS)
    ids = torch.from_numpy(random.randint(0, ATTRIBUTES, sizes.sum()).astype(np.int32))
    has = random.rand(ATTRIBUTES, labels) < np.arange(ATTRIBUTES)[:, None] / ATTRIBUTES
    first = torch.from_numpy(np.concatenate([[0], has.sum(1).cumsum()]))
    pairs = Pairs(first, torch.from_numpy(np.nonzero(has)[1].astype(np.int32)))
    return Bags(ids, torch.from_numpy(np.concatenate([[0], sizes.cumsum()]))), pairs, random.randn(int(has.sum()))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("labels", [3, 9, 40])
def test_scores_and_their_gradient(labels: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bags, "SHARE", 8)  # several threads
    if not compiled:
        monkeypatch.setattr(bags, "kernels", lambda: None)
    given, pairs, drawn_weights = drawn(labels, labels)
    weights, slopes = torch.from_numpy(drawn_weights), torch.randn(TOKENS, labels, dtype=torch.float64)
    scores, sums = np.zeros((TOKENS, labels)), np.zeros(len(weights))
    for token in range(TOKENS):
        for attribute in given.ids[given.offsets[token] : given.offsets[token + 1]].tolist():
            for pair in range(int(pairs.first[attribute]), int(pairs.first[attribute + 1])):
                scores[token, pairs.labels[pair]] += drawn_weights[pair]
                sums[pair] += slopes[token, pairs.labels[pair]]
    rows = Rows.choose(pairs, labels)
    assert (rows.shape[0] > 0) == (labels > 3)
    np.testing.assert_allclose(bags.score(given, pairs, rows, weights, labels), scores, atol=1e-12)
    found = bags.new_sums(weights, rows)
    for _ in range(2):
        bags.collect(given, pairs, rows, slopes, found)
    np.testing.assert_allclose(found.total(rows), 2 * sums, atol=1e-12)


def test_rows_hold_the_weights_of_attributes_with_many_labels() -> None:
    _, pairs, weights = drawn(9, 1)
    rows = Rows.choose(pairs, 9)
    table = rows.table(torch.from_numpy(weights))
    for attribute, count in enumerate(pairs.first.diff().tolist()):
        place = int(rows.place[attribute])
        assert (place >= 0) == (bags.MANY * count >= 9)
        if place >= 0:
            own = slice(int(pairs.first[attribute]), int(pairs.first[attribute + 1]))
            expected = np.zeros(9)
            expected[pairs.labels[own]] = weights[own]
            np.testing.assert_array_equal(table[place], expected)
