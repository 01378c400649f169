"""Batches: every token once, rows that continue, and resuming that changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from trellis.corpus import Batches, Documents, Sentences, Split, Streams
from trellis.distributed.job import Job
from trellis.errors import TrellisError
from trellis.types import Batch


@st.composite
def splits(draw: st.DrawFn) -> Split:
    """Tokens 1 ... n, all different, in random sentences and documents."""
    sentences = np.cumsum([0, *draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))])
    inner = draw(st.sets(st.sampled_from(sentences[1:].tolist())))
    documents = np.array(sorted({0, *inner, int(sentences[-1])}))
    return Split(np.arange(1, sentences[-1] + 1, dtype=np.int32), sentences, documents)


makers: list[Callable[[Split, int], Batches]] = [
    lambda split, size: Streams(split, lanes=size, window=3),
    lambda split, size: Sentences(split, tokens_per_batch=3 * size, seed=1),
    lambda split, size: Sentences(split, tokens_per_batch=3 * size, shuffle=False),
    lambda split, size: Documents(split, lanes=size, window=3, seed=1),
    lambda split, size: Documents(split, lanes=size, window=3, shuffle=False),
]


def rows(batch: Batch) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(batch.tokens, batch.lengths, strict=True)]


@given(splits(), st.integers(1, 5), st.sampled_from(makers))
def test_an_epoch_shows_every_token_once_and_pads_with_zero(
    split: Split, size: int, make: Callable[[Split, int], Batches]
) -> None:
    batches = make(split, size)
    expected_length = len(batches)
    epoch = list(batches)
    assert len(epoch) == expected_length
    assert sorted(token for batch in epoch for row in rows(batch) for token in row) == split.tokens.tolist()
    assert batches.tokens == split.tokens.size
    for batch in epoch:
        assert batch.tokens.dtype == batch.lengths.dtype == torch.int64
        assert batch.fresh.dtype == torch.bool
        assert batch.lengths.min() >= 1
        assert batch.lengths.max() == batch.tokens.shape[1]
        padding = torch.arange(batch.tokens.shape[1]) >= batch.lengths[:, None]
        assert (batch.tokens[padding] == 0).all()


@given(splits(), st.integers(1, 5), st.sampled_from(makers), st.integers(2, 3))
def test_processes_divide_the_rows_of_every_batch(
    split: Split, size: int, make: Callable[[Split, int], Batches], processes: int
) -> None:
    parts = []
    for number in range(processes):
        with patch.object(Job, "size", processes), patch.object(Job, "rank", number):
            parts.append(list(make(split, size).share()))
    most = max(len(batch.tokens) for batch in make(split, size))
    for whole, *some in zip(make(split, size), *parts, strict=True):
        assert [row for part in some if not part.idle for row in rows(part)] == rows(whole)
        assert {part.num_tokens for part in some} == {whole.num_tokens}
        assert {part[3:5] for part in some} == {whole[3:5]}
        assert all(len(part.tokens) == 1 for part in some if part.idle)
        shares = [0 if part.idle else len(part.tokens) for part in some]
        assert max(shares) - min(shares) <= 1 or len(whole.tokens) < most


@given(splits(), st.integers(1, 5), st.sampled_from(makers), st.data())
def test_resuming_gives_exactly_the_batches_that_would_have_come(
    split: Split, size: int, make: Callable[[Split, int], Batches], data: st.DataObject
) -> None:
    reference = make(split, size)
    two_epochs = [rows(batch) for _ in range(2) for batch in reference]
    stopped = make(split, size)
    seen = data.draw(st.integers(0, len(two_epochs)))
    iterator = (batch for _ in range(2) for batch in stopped)
    for _ in range(seen):
        next(iterator)
    resumed = make(split, size)
    resumed.restore(json.loads(json.dumps(stopped.state())))
    rest = [rows(batch) for batch in resumed]
    while resumed.epoch < 2:
        rest += [rows(batch) for batch in resumed]
    assert rest == two_epochs[seen:]


@given(splits(), st.integers(1, 40), st.integers(1, 7))
def test_streams_continue_row_by_row_in_lanes_of_equal_length(split: Split, lanes: int, window: int) -> None:
    epoch = list(Streams(split, lanes, window))
    width = min(lanes, split.tokens.size)
    streams = [[token for batch in epoch for token in rows(batch)[lane]] for lane in range(width)]
    assert [token for stream in streams for token in stream] == split.tokens.tolist()
    lengths = [len(stream) for stream in streams]
    assert max(lengths) - min(lengths) <= 1
    assert [batch.fresh.tolist() for batch in epoch] == [[i == 0] * width for i in range(len(epoch))]
    assert all(batch.tokens.shape == (width, window) for batch in epoch[:-1])
    assert epoch[-1].tokens.shape[1] <= window + 1


@given(splits(), st.integers(1, 30))
def test_sentence_batches_hold_whole_sentences_within_the_budget(split: Split, budget: int) -> None:
    sentences = {tuple(split.tokens[a:b].tolist()) for a, b in pairwise(split.sentences)}
    epoch = list(Sentences(split, budget, seed=3))
    assert {tuple(row) for batch in epoch for row in rows(batch)} == sentences
    for batch in epoch:
        assert batch.fresh.all()
        assert batch.tokens.numel() <= budget or len(batch.tokens) == 1


@given(splits(), st.integers(1, 5), st.integers(1, 4))
def test_documents_are_read_whole_by_one_row_each(split: Split, lanes: int, window: int) -> None:
    found: list[list[int]] = []
    reading: list[list[int]] = [[] for _ in range(lanes)]
    width = lanes
    for batch in Documents(split, lanes, window, seed=2):
        assert len(batch.tokens) <= width
        width = len(batch.tokens)
        for lane, row in enumerate(rows(batch)):
            if batch.fresh[lane]:
                reading[lane] = []
                found.append(reading[lane])
            reading[lane] += row
    documents = [split.tokens[a:b].tolist() for a, b in pairwise(split.documents)]
    assert sorted(found) == sorted(documents)


@pytest.mark.parametrize("make", makers[1:4:2], ids=["sentences", "documents"])
def test_the_order_depends_on_seed_and_epoch_alone(make: Callable[[Split, int], Batches]) -> None:
    ends = np.arange(0, 201, 4)
    split = Split(np.arange(1, 201, dtype=np.int32), ends, ends)
    one, other = make(split, 4), make(split, 4)
    first = [rows(batch) for batch in one]
    assert [rows(batch) for batch in other] == first
    assert [rows(batch) for batch in one] != first


def test_impossible_requests_are_refused() -> None:
    empty = np.array([0])
    with pytest.raises(TrellisError, match="no tokens"):
        Streams(Split(np.empty(0, np.int32), empty, empty), 1, 1)
    split = Split(np.ones(4, np.int32), np.array([0, 4]), np.array([0, 4]))
    with pytest.raises(TrellisError, match="window is 0"):
        Streams(split, 1, 0)
    with pytest.raises(TrellisError, match="tokens_per_batch is -1"):
        Sentences(split, -1)


@pytest.mark.parametrize(
    "state", [{"epoch": -1, "position": 0}, {"epoch": 0, "position": -1}, {"epoch": 0, "position": 3}]
)
def test_positions_outside_an_epoch_are_refused(state: dict[str, int]) -> None:
    batches = Streams(Split(np.arange(8, dtype=np.int32), np.array([0, 8]), np.array([0, 8])), lanes=2, window=2)
    with pytest.raises(ValueError, match=f"it is at batch {state['position']} of 2 in epoch {state['epoch']}"):
        batches.restore(state)
    batches.restore({"epoch": 1, "position": 2})
    assert batches.state() == {"epoch": 1, "position": 2}
