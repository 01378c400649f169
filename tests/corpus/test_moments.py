"""Counts of words some positions apart, against a loop."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest

from trellis.corpus import moments
from trellis.corpus.moments import check_sizes, choose_rows, count_moments, count_passage
from trellis.errors import TrellisError


def looped(text: np.ndarray, rows: np.ndarray, lag: int, circular: bool) -> np.ndarray:
    size = rows.max() + 1
    table = np.zeros((size, size))
    for t in range(len(text) if circular else len(text) - lag):
        table[rows[text[(t + lag) % len(text)]], rows[text[t]]] += 1
    return table


@pytest.mark.parametrize("circular", [True, False])
@pytest.mark.parametrize("chunk", [7, 10, 50, 1000])
@pytest.mark.parametrize("most", [0, 3])
def test_counts_are_those_of_a_loop(monkeypatch, circular, chunk, most) -> None:
    monkeypatch.setattr(moments, "CHUNK", chunk)
    text = np.random.default_rng(chunk).integers(1, 7, 50)
    rows = choose_rows(np.bincount(text, minlength=9), most)
    found = count_moments(text, rows, 4, circular)
    assert rows[0] == rows[8] == -1
    assert found.tokens == 50
    np.testing.assert_array_equal(found.counts, np.bincount(rows[text]))
    for lag in range(1, 5):
        np.testing.assert_array_equal(found.lags[lag - 1].toarray(), looped(text, rows, lag, circular))
    if circular:
        np.testing.assert_array_equal(found.lags[3].sum(0), found.counts)
    assert found.pairs == sum(np.count_nonzero(lag.toarray()) for lag in found.lags)


@pytest.mark.parametrize("length", [1, 2, 7, 60])
def test_passages_of_any_length_add_up_to_the_text(length) -> None:
    """They are counted in blocks of up to four words; some are shorter than a lag."""
    text = np.random.default_rng(length).integers(1, 7, 50)
    rows = choose_rows(np.bincount(text, minlength=9), 4)
    parts = [text[begin : begin + length] for begin in range(0, 50, length)]
    blocks = ([part[begin : begin + 4] for begin in range(0, len(part), 4)] for part in parts)
    passages = [count_passage(part, rows, 4) for part in blocks]
    from_left, from_right = reduce(add, passages), reduce(lambda later, one: one + later, reversed(passages))
    for total in (from_left, from_right):
        for found, circular in ((total.moments, False), (total.wrapped(), True)):
            expected = count_moments(text, rows, 4, circular)
            assert found.circular == circular
            np.testing.assert_array_equal(found.counts, expected.counts)
            assert all((one != other).nnz == 0 for one, other in zip(found.lags, expected.lags, strict=True))


def test_a_passage_has_words_and_a_text_enough_of_them() -> None:
    assert count_passage([], np.arange(3), 2) is None
    with pytest.raises(TrellisError, match="longer text"):
        count_passage([np.array([0, 1])], np.arange(2), 2).wrapped()


def test_counts_of_two_texts_add() -> None:
    first, second = np.array([0, 1, 2, 1, 0]), np.array([2, 2, 1, 0, 0])
    rows = np.arange(3)
    total = count_moments(first, rows, 2) + count_moments(second, rows, 2)
    np.testing.assert_array_equal(total.lags[1].toarray(), looped(first, rows, 2, True) + looped(second, rows, 2, True))
    with pytest.raises(TrellisError, match="different rows or lags"):
        total + count_moments(first, rows, 1)


def test_the_commonest_words_have_rows_of_their_own() -> None:
    assert choose_rows(np.array([3, 9, 0, 5, 5]), 3).tolist() == [2, 0, -1, 1, 2]
    assert choose_rows(np.array([1, 0, 2])).tolist() == [1, -1, 0]


def test_what_cannot_be_counted_is_told() -> None:
    with pytest.raises(TrellisError, match="longer text"):
        count_moments(np.array([0, 1]), np.arange(2), 2)
    with pytest.raises(TrellisError, match="count 0"):
        count_moments(np.array([0, 1, 1, 1]), np.array([-1, 0]), 2)
    with pytest.raises(TrellisError, match="4,294,967,296 words are too many"):
        check_sizes(5, np.array([2**32 - 1]), 1)
    assert check_sizes(5, np.array([2**31]), 1) == 2**31 + 1
