"""Gradients are summed over processes in buckets, as soon as these are complete."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trellis import distributed
from trellis.learning import reduction
from trellis.learning.reduction import Gradients

PROCESSES = 3  # which all have the same gradients


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the messages that were sent."""
    sizes = list[int]()

    def begin_sum(flat: Tensor) -> Callable[[], object]:
        sizes.append(flat.numel())
        return lambda: flat.mul_(PROCESSES)

    monkeypatch.setattr(distributed, "is_joined", lambda: True)
    monkeypatch.setattr(distributed, "begin_sum", begin_sum)
    return sizes


def weights(*sizes: int, dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(size, dtype=dtype)) for size in sizes]


def test_every_gradient_is_a_sum_over_processes(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "BUCKET", 8 * 5)
    first, second, third, unused = every = weights(4, 3, 2, 1)
    gradients = Gradients(every)
    assert [[one.numel() for one in bucket] for bucket in gradients.buckets] == [[1, 2], [3], [4]]
    for _ in range(2):
        sent.clear()
        with gradients.arriving(captured=False):
            (first.sum() + (2 * second * second).sum() + 5 * third.sum()).backward()
        assert sent == []  # the first bucket waits for a weight that is not used
        gradients.finish()
        assert sent == [2, 3, 4]
        for weight, slope in ((first, 1), (second, 4), (third, 5)):
            torch.testing.assert_close(weight.grad, torch.full_like(weight, PROCESSES * slope))
            weight.grad = None
        assert unused.grad is None


def test_complete_buckets_are_sent_before_the_backward_pass_ends(
    sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduction, "BUCKET", 8)
    early, late = weights(1, 1)
    gradients = Gradients([early, late])
    with gradients.arriving(captured=False):
        late.sum().backward()
        assert sent == [1]
        early.sum().backward()
        assert sent == [1, 1]
    gradients.finish()
    torch.testing.assert_close([early.grad, late.grad], [torch.full_like(early, PROCESSES)] * 2)


def test_a_captured_pass_sends_nothing_before_its_end(sent: list[int]) -> None:
    (weight,) = weights(2)
    gradients = Gradients([weight])
    with gradients.arriving(captured=True):
        weight.sum().backward()
    assert sent == []
    gradients.finish()
    torch.testing.assert_close(weight.grad, torch.full_like(weight, PROCESSES))


def test_only_touched_rows_are_sent(sent: list[int]) -> None:
    table, whole = (nn.Parameter(torch.arange(12.0, dtype=torch.float64).view(4, 3)) for _ in range(2))
    rows = torch.tensor([1, 3])
    gradients = Gradients([table, whole])
    gradients.touched = {table: rows}
    with gradients.arriving(captured=False):
        ((table[rows] ** 2).sum() + whole.sum()).backward()
    gradients.finish()
    assert sent == [2 * 3 + 4 * 3]
    expected = torch.zeros_like(table).index_copy(0, rows, 2 * PROCESSES * table[rows])
    torch.testing.assert_close(table.grad, expected)
    torch.testing.assert_close(whole.grad, torch.full_like(whole, PROCESSES))


def test_a_bucket_has_one_type(sent: list[int]) -> None:
    single, double = weights(2, dtype=torch.float32), weights(2)
    assert [len(bucket) for bucket in Gradients([*single, *double]).buckets] == [1, 1]


def test_a_process_alone_sums_nothing() -> None:
    (weight,) = weights(2)
    gradients = Gradients([weight])
    with gradients.arriving(captured=False):
        weight.sum().backward()
    gradients.finish()
    torch.testing.assert_close(weight.grad, torch.ones_like(weight))


def test_a_bucket_without_gradients_is_not_sent(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "BUCKET", 8)
    used, unused = every = weights(1, 1)
    gradients = Gradients(every)
    used.grad = torch.ones(1, dtype=torch.float64)
    gradients.finish()
    assert sent == [1]
    assert unused.grad is None
    assert float(used.grad) == PROCESSES
    assert not gradients.sums
