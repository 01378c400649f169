"""E-steps over live states as CUDA graphs (pretended where there is no GPU) against the same E-steps without."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from operators import flat
from replays import replay_anywhere
from trellis.emissions import Categorical, Partition
from trellis.engines import replay
from trellis.learning.em import expect
from trellis.parts import Parts
from trellis.transitions import Dense

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
CLASSES = pytest.mark.parametrize("sizes", [[3, 3, 3], [4, 1, 2], None])


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> replay.Graphs:
    replay_anywhere(monkeypatch)
    monkeypatch.setattr(replay, "OF_BLOCKS", replay.Room({}, larger=16))
    return replay.OF_BLOCKS.graphs


def model(seed: int, sizes: list[int] | None, words: int = 6, dtype: torch.dtype = torch.float64) -> Parts:
    """An HMM over classes of states of these sizes; if None, each word has three random states of eight."""
    generator = torch.Generator().manual_seed(seed)
    if sizes is None:
        support: Any = torch.stack([torch.randperm(8, generator=generator)[:3] for _ in range(words)]).to(DEVICE)
    else:
        support = Partition(torch.arange(words) % len(sizes), sizes).to(DEVICE)
    states, live = sum(sizes or [8]), max(sizes or [3])
    matrix = torch.rand(states, states, generator=generator, dtype=torch.float64)
    start = torch.rand(states, generator=generator, dtype=torch.float64)
    table = torch.rand(words, live, generator=generator, dtype=torch.float64).log().to(DEVICE)
    if isinstance(support, Partition) and support.allowed is not None:
        table = table.masked_fill(~support.allowed, -torch.inf)
    transition = Dense((matrix / matrix.sum(-1, keepdim=True)).to(DEVICE, dtype))
    return Parts((start / start.sum()).to(DEVICE, dtype), transition, Categorical(table.to(dtype), support, states))


def text(seed: int, words: int = 6, shape: tuple[int, int] = (5, 7)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(words, shape, generator=generator)
    return tokens.to(DEVICE), torch.randint(1, shape[1] + 1, shape[:1], generator=generator).to(DEVICE)


def two_windows(parts: Parts, seed: int) -> list[Tensor]:
    """The counts of two batches, of which the second continues some sequences of the first."""
    first, carry = expect(parts, *text(seed))
    again = carry.reset(torch.tensor([True, False, False, True, False], device=DEVICE))
    second, after = expect(parts, *text(seed + 1), again)
    return flat((first, second, after.belief))


def without_graphs(parts: Parts, seed: int) -> list[Tensor]:
    with mock.patch.object(replay, "replayed_blocks", return_value=None):
        return two_windows(parts, seed)


@CLASSES
def test_counts_agree(sizes: list[int] | None, graphs: replay.Graphs) -> None:
    kept = []
    for seed in (1, 1, 1, 2):  # run, captured, replayed, and replayed on another problem
        parts = model(seed, sizes)
        kept.append((two_windows(parts, seed), without_graphs(parts, seed)))
    for ours, plain in kept:
        for one, other in zip(ours, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert [graph.calls for graph in graphs.values()] == [4, 4]


def test_gaps_have_no_graph(graphs: replay.Graphs) -> None:
    parts, (tokens, lengths) = model(3, [3, 3, 3]), text(3)
    tokens[0, 0] = -1
    for _ in range(3):
        counts, _ = expect(parts, tokens, lengths)
    assert not graphs
    assert float(counts.transition.sum()) == pytest.approx(float((lengths - 1).sum()))


def test_sequences_that_underflow_are_recomputed() -> None:
    """State 1, the only one from which another class can be reached, is 2,000 nats less probable than the others."""
    parts, (tokens, lengths) = model(4, [3, 3, 3]), text(4)
    parts.emission.table[tokens[0, 0]] = torch.tensor([0.0, -2000.0, 0.0], dtype=torch.float64)
    first = parts.emission.support[tokens[0, 0]]
    parts.transition.matrix[first] = 0.0
    parts.transition.matrix[first[[0, 2]], first[0]] = 1.0
    parts.transition.matrix[first[1]] = 1 / 9
    for _ in range(3):
        counts, _ = expect(parts, tokens, lengths)
    with mock.patch.object(replay, "replayed_blocks", return_value=None):
        plain, _ = expect(parts, tokens, lengths)
    assert -20000.0 < float(counts.log_likelihood) < -2000.0
    for one, other in zip(flat(counts), flat(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_graph_that_does_not_fit_in_memory_is_not_used(graphs: replay.Graphs) -> None:
    parts = model(5, [3, 3, 3])
    with mock.patch.object(replay.Replay, "capture", side_effect=torch.cuda.OutOfMemoryError):
        for _ in range(3):
            ours = two_windows(parts, 5)
    for one, other in zip(ours, without_graphs(parts, 5), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert all(graph.replay is None for graph in graphs.values())


@pytest.mark.skipif(not CUDA, reason="torch sees no GPU")
@pytest.mark.parametrize("sizes", [[32] * 32, [33, 32, 30], [2, 1] * 4])
def test_counts_in_float32_are_the_same_bits(sizes: list[int], graphs: replay.Graphs) -> None:
    parts = model(6, sizes, 500, torch.float32)
    words = text(6, 500, (16, 9))
    with mock.patch.object(replay, "replayed_blocks", return_value=None):
        plain, _ = expect(parts, *words)
    for _ in range(4):
        counts, _ = expect(parts, *words)
    for one, other in zip(counts, plain, strict=True):
        assert one.equal(other)
    assert [graph.calls for graph in graphs.values()] == [4]
