"""Small problems as CUDA graphs (pretended where there is no GPU) against the same functions step by step."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from operators import flat
from replays import replay_anywhere
from trellis import engines
from trellis.engines import homogeneous, reference, replay
from trellis.testing.problems import random_problem
from trellis.transitions import Dense, Stacked
from trellis.types import Belief, Potentials

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FUNCTIONS = ["score", "filter", "smooth", "expect", "viterbi"]


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> replay.Graphs:
    """New graphs; the engines of a GPU that has none of its own for this problem."""
    replay_anywhere(monkeypatch)
    room = replay.Room({})
    monkeypatch.setattr(replay.replayed, "__defaults__", (room,))
    monkeypatch.setattr(engines, "choose", lambda *_: homogeneous)
    monkeypatch.setattr(engines, "engine", lambda *_: homogeneous)
    return room.graphs


def problem(seed: int, chains: int) -> tuple[Belief, Any, Potentials, Tensor]:
    """In float64: sequences of one chain, or of several with their own matrices."""
    prior, transition, potentials, lengths = random_problem(seed, 2 * chains, 5, 4, symbols=6, missing=0.2, shortest=1)
    matrix = transition.dense().to(DEVICE)
    matrices = torch.stack([matrix.roll(n, 0) for n in range(chains)])
    table, rows = potentials.table.to(DEVICE), potentials.rows.to(DEVICE)
    chosen = Dense(matrix) if chains == 1 else Stacked(matrices)
    return Belief(prior.probs.to(DEVICE)), chosen, Potentials(table, rows), lengths.to(DEVICE)


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_graphs_agree_with_steps(function: str, chains: int, graphs: replay.Graphs) -> None:
    for seed in (1, 1, 1, 2):  # run, captured, replayed, and replayed on another problem
        given = problem(seed, chains)
        ours, exact = getattr(engines, function)(*given), getattr(homogeneous, function)(*given)
        for one, other in zip(flat(ours), flat(exact), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    (graph,) = graphs.values()
    assert graph.calls == 4


def test_samples_are_those_of_the_steps(graphs: replay.Graphs) -> None:
    prior, transition, potentials, lengths = problem(3, 1)
    filtered = homogeneous.filter(prior, transition, potentials, lengths)[1]
    for seed in range(4):
        uniform = torch.rand(filtered.shape[:2], generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        ours = engines.sample(transition, filtered, lengths, uniform)
        assert ours.equal(reference.sample(transition, filtered, lengths, uniform))
    assert len(graphs) == 1


def test_results_are_not_those_of_the_next_problem() -> None:
    first, second = problem(1, 1), problem(2, 1)
    for _ in range(2):
        engines.expect(*first)
    found = flat(engines.expect(*first))
    kept = [tensor.clone() for tensor in found]
    engines.expect(*second)
    assert all(one.equal(other) for one, other in zip(found, kept, strict=True))


def test_large_problems_and_gradients_have_no_graph(graphs: replay.Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    prior, transition, potentials, lengths = problem(1, 1)
    learned = Belief(prior.probs.requires_grad_())
    for _ in range(3):
        assert engines.score(learned, transition, potentials, lengths)[0].requires_grad
    monkeypatch.setattr(replay, "SMALL", 4)
    engines.score(Belief(prior.probs.detach()), transition, potentials, lengths)
    assert not graphs


@pytest.mark.parametrize("failing", [1, 2])
def test_a_call_that_fails_does_not_count(failing: int, graphs: replay.Graphs) -> None:
    """The first call fails, or the one that is captured. The function runs once before it is captured in any case."""
    attempts = list[bool]()

    def double(values: Tensor) -> Tensor:
        attempts.append(replay.LOCK._is_owned())  # type: ignore[attr-defined]
        if len(attempts) == failing:
            raise RuntimeError("not now")
        return 2 * values

    values = torch.arange(3.0, device=DEVICE)
    for number in range(1, 5):
        try:
            assert replay.replayed("double", double, (values + number,), 0).equal(2 * (values + number))
        except RuntimeError:
            assert number == failing
    assert attempts[:3] == ([False, False, True] if failing == 1 else [False, True, True])
    (graph,) = graphs.values()
    assert graph.calls == 3
    assert not replay.LOCK._is_owned()  # type: ignore[attr-defined]


def test_functions_in_graphs_may_use_graphs_in_several_threads() -> None:
    def inner(values: Tensor) -> Tensor:
        return values + 1

    def outer(values: Tensor) -> Tensor:
        return 2 * replay.replayed("inner", inner, (values,), 0)

    def work() -> None:
        for n in range(200):
            values = torch.full((3,), float(n), device=DEVICE)
            found.append(replay.replayed("outer", outer, (values,), 0).equal(2 * (values + 1)))
            found.append(replay.replayed("inner", inner, (values,), 0).equal(values + 1))

    found = list[bool]()
    threads = [Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert found == [True] * 1200


def test_graphs_are_dropped_if_they_exceed_their_budget(graphs: replay.Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "BUDGET", 250)
    for steps in range(2, 9):
        prior, transition, (table, rows, *_), lengths = problem(0, 1)
        shorter = Potentials(table, rows.repeat(1, 2)[:, :steps])
        engines.score(prior, transition, shorter, lengths.clamp(max=steps))
        assert sum(graph.size for graph in graphs.values()) <= 250
    assert graphs
