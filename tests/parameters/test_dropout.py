"""Partitions of the states, and draws of what to leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters import Dropout
from trellis.families.hmm.parameters.dropout import STAGES
from trellis.families.hmm.parameters.support import apportion
from trellis.testing.oracle import SMALLEST_P, chi_square

EVEN = Partition(torch.tensor([0, 1, 0, 2, 1]), [4, 4, 4])
UNEVEN = Partition(torch.tensor([0, 1, 0, 2, 1]), [1, 5, 3])
EITHER = pytest.mark.parametrize("partition", [EVEN, UNEVEN], ids=["even", "uneven"])


@EITHER
def test_windows_begin_with_a_classs_own_states(partition: Partition) -> None:
    state_class = partition.state_class()
    assert partition.windows.shape == (3, max(partition.counts))
    assert state_class.bincount().tolist() == list(partition.counts)
    for name, (window, size) in enumerate(zip(partition.windows, partition.counts, strict=True)):
        assert (state_class[window[:size]] == name).all()
        assert (state_class[window[size:]] != name).all()
        assert len(set(window.tolist())) == len(window)
    assert torch.equal(partition.support, partition.windows[partition.word_class])
    assert (partition.own is None) == (partition is EVEN)


@EITHER
@pytest.mark.parametrize("rate", [0.25, 0.5, 0.9])
def test_a_draw_keeps_its_share_of_every_class(partition: Partition, rate: float) -> None:
    drawn = Dropout("state", rate, None, partition).draw(partition)
    assert drawn is not None
    assert drawn.ids is not None
    assert drawn.partition is not None
    expected = [max(1, round(size * (1 - rate))) for size in partition.counts]
    assert list(drawn.partition.counts) == expected
    assert partition.state_class()[drawn.ids].tolist() == np.repeat(range(3), expected).tolist()
    assert len(set(drawn.ids.tolist())) == len(drawn.ids)


@pytest.mark.parametrize(
    ("count", "rate", "kept"), [(10, 0.25, 8), (3, 0.9, 1), (511, 0.001, 510), (1024, 0.1, 928), (700, 0.2, 576)]
)
def test_the_number_kept_is_aligned_if_it_is_large(count: int, rate: float, kept: int) -> None:
    draw = Dropout("state", rate, states=count).draw(None)
    assert draw is not None
    assert draw.ids is not None
    assert len(draw.ids.unique()) == kept
    assert Dropout("none", 0.0, features=count, feature_rate=rate).kept_features == kept


def test_without_classes_a_draw_keeps_its_share_of_all_states() -> None:
    dropout = Dropout("state", 0.25, states=12)
    draws = [drawn.ids for _ in range(400) if (drawn := dropout.draw(None)) and drawn.ids is not None]
    assert all(len(ids.unique()) == 9 and torch.equal(ids, ids.sort().values) for ids in draws)
    assert chi_square(torch.cat(draws).numpy(), np.full(12, 1 / 12)) > SMALLEST_P


@EITHER
def test_every_state_of_a_class_is_kept_equally_often(partition: Partition) -> None:
    dropout = Dropout("state", 0.5, None, partition)
    kept = torch.cat([d.ids for _ in range(400) if (d := dropout.draw(partition)) and d.ids is not None])
    for name, size in enumerate(partition.counts):
        mine = kept[partition.state_class()[kept] == name]
        assert chi_square((mine - partition.windows[name, 0]).numpy(), np.full(size, 1 / size)) > SMALLEST_P


def test_draws_repeat_with_the_seed_and_go_on_where_they_were() -> None:
    def draws(dropout: Dropout, count: int) -> list[list[int]]:
        drawn = [dropout.draw(EVEN) for _ in range(count)]
        return [d.ids.tolist() for d in drawn if d is not None and d.ids is not None]

    one, same, other = (Dropout("state", 0.5, None, EVEN, seed) for seed in (1, 1, 2))
    first = draws(one, 3)
    assert first == draws(same, 3)
    assert first != draws(other, 3)
    assert len({tuple(d) for d in first}) > 1
    resumed = Dropout("state", 0.5, None, EVEN, 1)
    resumed.load_state_dict(one.state_dict())
    assert draws(one, 2) == draws(resumed, 2)


def test_the_rate_goes_from_its_beginning_to_its_end() -> None:
    dropout = Dropout("state", 0.5, 0.2, EVEN)
    rates = []
    for done in np.linspace(0, 1, 5 * STAGES):
        dropout.advance(float(done))
        rates.append(dropout.now)
    assert rates[0] == 0.5
    assert rates[-1] == 0.2
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == STAGES


def test_states_are_dropped_by_class() -> None:
    with pytest.raises(TrellisError, match="State dropout needs disjoint classes"):
        Dropout("state", 0.5)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"dropout": "states"}, "did you mean 'state'"),
        ({"dropout": "unstructured", "dropout_rate": 1.0}, r"must be in \[0, 1\)"),
        ({"dropout_end": 0.2}, "model.dropout_end needs dropout"),
        ({"dropout": "unstructured", "dropout_end": -0.1}, r"must be in \[0, 1\)"),
        ({"dropout": "state", "emission": "uniform"}, "State dropout needs classes"),
    ],
)
def test_what_cannot_be_is_refused(choices: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        HMMConfig(**choices)


@pytest.mark.parametrize("rule", ["equal", "log", "root"])
def test_states_are_shared_out_to_the_last(rule: str) -> None:
    counts = [1000, 1, 10, 0, 300]
    sizes = apportion(37, counts, rule)
    assert sum(sizes) == 37
    assert min(sizes) >= 1
    if rule == "equal":
        assert max(sizes) - min(sizes) <= 1
    else:
        assert sizes[0] > sizes[4] > sizes[2] > sizes[1] >= sizes[3]
