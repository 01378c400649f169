"""Sampling with CUDA graphs (pretended where there is no GPU) and without waiting for the device, against sampling step
by step."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from test_constrained import KINDS, SENTENCES, STREAM, VOCAB, small
from test_guided import CONSTRAINT, other_model

from replays import capture, replay_anywhere
from trellis.constraints import Automaton, contains, one_of
from trellis.constraints.automaton import side_by_side
from trellis.emissions import Categorical
from trellis.emissions.classed import Likelihoods
from trellis.engines import replay
from trellis.inference import constrained, constrained_sampling
from trellis.inference.constrained import Position, Product
from trellis.inference.constrained_lattice import Span
from trellis.inference.constrained_sampling import sample
from trellis.inference.guided import sample_next
from trellis.inference.queries import Chain
from trellis.testing.problems import seeded
from trellis.transitions import Dense
from trellis.transitions.base import invert, invert_by_blocks
from trellis.types import Belief

EXACT = 1e-10
CONSTRAINTS = [CONSTRAINT, contains("a b") & contains("c"), one_of(["a b", "b", "c a"])]


@pytest.mark.parametrize("span", [SENTENCES, STREAM])
@pytest.mark.parametrize(("moves", "emits"), KINDS)
def test_samples_are_those_of_single_steps(moves: str, emits: str, span: object, monkeypatch) -> None:
    replay_anywhere(monkeypatch)
    monkeypatch.setattr(constrained, "PATIENCE", 2)
    monkeypatch.setattr(constrained_sampling, "LOOKS", 2)
    for constraint in CONSTRAINTS:
        product = Product(small(2, moves, emits).chain, constraint.compile(VOCAB), span)
        if product.lattice.size == 0:
            continue
        wanted = [sample(product, product.begin(20), seeded(n)) for n in range(3)]
        before = product.before(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
        log_probs = other_model(0).expand(20, -1)
        guided = [sample_next(product, product.begin(20), log_probs, 1.0, seeded(n)) for n in range(6)]
        read = product.read(product.begin(2), torch.tensor([0, 2]))
        places = all_positions(product)
        corrections = product.corrections(places)
        product.side_by_side = True
        torch.testing.assert_close(product.before(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1])), before)
        assert [sample(product, product.begin(20), seeded(n)) for n in range(3)] == wanted
        for n, tokens in enumerate(guided):
            assert torch.equal(sample_next(product, product.begin(20), log_probs, 1.0, seeded(n)), tokens)
        for _ in range(4):
            torch.testing.assert_close(product.read(product.begin(2), torch.tensor([0, 2])), read)
            torch.testing.assert_close(product.corrections(places), corrections)
        assert torch.cuda.is_available() or bool(product.graphs) == isinstance(product.moves, Dense)


def all_positions(product: Product) -> Position:
    """Every state of the automaton, certain ones too, after every number of tokens, under some distribution of states
    of the chain."""
    steps, states = torch.meshgrid(
        torch.arange(STREAM.most + 1), torch.arange(len(product.lattice.after)), indexing="ij"
    )
    ahead = torch.rand(steps.numel(), product.prior.shape[1], generator=seeded(0), dtype=product.dtype)
    return Position(ahead / ahead.sum(-1, keepdim=True), steps.flatten(), states.flatten())


def test_graphs_do_not_keep_a_product_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_anywhere(monkeypatch)
    monkeypatch.setattr(constrained, "PATIENCE", 0)
    product = Product(on_device(small(2).chain), CONSTRAINT.compile(VOCAB), SENTENCES)
    product.side_by_side = True
    for _ in range(3):
        sample(product, product.begin(4), seeded(0))
    assert product.graphs
    kept = weakref.ref(product)
    gc.disable()
    try:
        del product
        assert kept() is None
    finally:
        gc.enable()


def test_few_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constrained, "PATIENCE", 0)
    monkeypatch.setattr(constrained, "GRAPHS", 2)
    monkeypatch.setattr(constrained.replay, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(constrained.replay.Replay, "capture", capture)
    product = Product(small(2).chain, CONSTRAINT.compile(VOCAB), SENTENCES)
    product.side_by_side = True
    for batch in range(1, 6):
        product.read(product.begin(batch), torch.zeros(batch, dtype=torch.int64))
        assert 1 <= len(product.graphs) <= 2


def test_graphs_that_replace_each_other_are_made_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that shrink again and again, of more sizes than graphs are kept."""
    made = list[replay.Replay]()

    def count(graph: replay.Replay, problem: tuple[Any, ...]) -> Any:
        made.append(graph)
        return capture(graph, problem)

    replay_anywhere(monkeypatch)
    monkeypatch.setattr(replay.Replay, "capture", count)
    monkeypatch.setattr(constrained, "PATIENCE", 1)
    monkeypatch.setattr(constrained, "GRAPHS", 2)
    product = Product(on_device(small(2).chain), CONSTRAINT.compile(VOCAB), SENTENCES)
    product.side_by_side = True
    for batch in [5, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2] * 20:
        product.read(product.begin(batch), torch.zeros(batch, dtype=torch.int64, device=DEVICE))
    assert 0 < len(made) < 20


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(chain: Chain) -> Chain:
    """A chain with the same transition matrix and emission, in a dense form on the GPU."""
    parts = chain.prior.probs, chain.transition.dense(), chain.emission.dense()
    prior, matrix, table = (part.to(DEVICE) for part in parts)
    return Chain(Belief(prior), Dense(matrix), Categorical(table, None, len(matrix)))


def constraints_of_one_shape(number: int) -> list[Automaton]:
    """Several constraints whose automata differ in their words only, prepared alone or together."""
    words = ["a", "b", "c"]
    return [(contains(words[n % 3]) & contains(words[(n + 1) % 3])).compile(VOCAB) for n in range(number)]


@pytest.mark.parametrize("span", [SENTENCES, STREAM, SENTENCES._replace(least=2)])
@pytest.mark.parametrize("together", [1, 3])
def test_preparation_of_several_constraints_by_one_graph(together: int, span: Span, monkeypatch) -> None:
    chain = on_device(small(2).chain)
    alone = constraints_of_one_shape(5)
    groups = [side_by_side(alone[n : n + together]) for n in range(5 - together + 1)] * 2
    expected = [Product(chain, *group_span(group, span, None)) for group in groups]
    replay_anywhere(monkeypatch)
    likelihoods = Likelihoods.of(chain.emission)
    for group, plain in zip(groups, expected, strict=True):
        product = Product(chain, *group_span(group, span, likelihoods))
        for one, other in zip(product.messages + product.relaxed, plain.messages + plain.relaxed, strict=True):
            torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)
        assert product.log_prob(product.begin(1, group[1][-1])).allclose(plain.log_prob(plain.begin(1, group[1][-1])))
    first = Product(chain, *group_span(groups[0], span, likelihoods)).messages
    kept = [part.clone() for part in first]
    Product(chain, *group_span(groups[1], span, likelihoods))
    assert all(one.equal(other) for one, other in zip(first, kept, strict=True))
    assert max(graph.calls for graph in likelihoods.graphs.values()) >= len(groups)


def group_span(group: tuple[Automaton, list[int]], span: Span, likelihoods: Likelihoods | None) -> tuple[Any, ...]:
    automaton, starts = group
    return automaton, span, likelihoods, starts


def test_preparation_of_impossible_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state emits "b"; and no text of three words has four."""
    replay_anywhere(monkeypatch)
    chain = on_device(small(1).chain)
    table = chain.emission.dense().exp() * torch.tensor([1.0, 0.0, 1.0, 1.0], device=DEVICE).unsqueeze(-1)
    chain = chain._replace(emission=Categorical((table / table.sum(0)).log(), None, 3))
    likelihoods = Likelihoods.of(chain.emission)
    for _ in range(4):
        for constraint, possible in ((contains("b"), False), (contains("a"), True), (contains("a", 4), False)):
            product = Product(chain, constraint.compile(VOCAB), STREAM, likelihoods)
            assert bool(product.log_prob(product.begin()).isfinite()) == possible


def test_few_graphs_of_preparation_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_anywhere(monkeypatch)
    chain = on_device(small(2).chain)
    likelihoods = Likelihoods.of(chain.emission)
    for most in range(1, 40):
        Product(chain, CONSTRAINT.compile(VOCAB), Span(most, most, None), likelihoods)
        assert len(likelihoods.graphs) <= constrained.GRAPHS
    assert likelihoods.graphs


def test_each_transition_matrix_has_its_own_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, automaton = on_device(small(2).chain), CONSTRAINT.compile(VOCAB)
    chains = [chain, chain._replace(transition=Dense(chain.transition.dense().roll(1, 0)))]
    expected = [Product(each, automaton, STREAM).messages for each in chains]
    replay_anywhere(monkeypatch)
    likelihoods = Likelihoods.of(chain.emission)
    for _ in range(3):
        for each, plain in zip(chains, expected, strict=True):
            for one, other in zip(Product(each, automaton, STREAM, likelihoods).messages, plain, strict=True):
                torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


def test_constraints_prepared_in_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads share graphs, of which there is not enough room for all."""
    replay_anywhere(monkeypatch)
    chain, automata = on_device(small(2).chain), [contains(word).compile(VOCAB) for word in "abc"]
    likelihoods, spans = Likelihoods.of(chain.emission), [Span(most, most, None) for most in range(1, 12)]
    expected = [[Product(chain, one, span).messages.values for span in spans] for one in automata]

    def prepare(number: int) -> bool:
        found = [[Product(chain, automata[number], s, likelihoods).messages.values for s in spans] for _ in range(20)]
        return all(
            one.allclose(two, rtol=EXACT) for row in found for one, two in zip(row, expected[number], strict=True)
        )

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(prepare, range(3))) == [True] * 3
    finally:
        sys.setswitchinterval(interval)
    assert likelihoods.graphs


def test_the_memory_of_a_graph_is_free_when_it_is_tried_without(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs_made, during_calls = list[weakref.ref](), list[bool]()

    class Graph:
        replay = None

        def __init__(self) -> None:
            graphs_made.append(weakref.ref(self))

    def run(moves: Dense, order: tuple, size: int, relaxed: bool, values: torch.Tensor) -> torch.Tensor:
        during_calls.append(bool(graphs_made) and graphs_made[-1]() is not None)
        if during_calls[-1]:  # it is being captured
            raise torch.cuda.OutOfMemoryError
        return values

    monkeypatch.setattr(replay, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: nullcontext())
    graphs, work = dict[Hashable, Any](), partial(run, Dense(torch.eye(2)), (), 1, False)
    gc.disable()
    try:
        for _ in range(2):
            assert constrained.prepared(work, (torch.ones(2),), graphs).tolist() == [1, 1]
    finally:
        gc.enable()
    assert during_calls == [False, True, False]
    assert not graphs


def test_a_graph_that_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_anywhere(monkeypatch)
    chain = on_device(small(2).chain)
    likelihoods, automaton = Likelihoods.of(chain.emission), CONSTRAINT.compile(VOCAB)
    plain = Product(chain, automaton, STREAM, likelihoods).messages

    def fail(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(constrained.replay.Replay, "capture", fail)
    found = Product(chain, automaton, STREAM, likelihoods).messages
    assert all(one.equal(other) for one, other in zip(found, plain, strict=True))
    assert not likelihoods.graphs


def test_steps_whose_graph_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run directly, and another graph is tried only after twice as many calls."""
    attempts = list[replay.Replay]()

    def fail(graph: replay.Replay, problem: tuple[Any, ...]) -> Any:
        attempts.append(graph)
        raise torch.cuda.OutOfMemoryError

    replay_anywhere(monkeypatch)
    monkeypatch.setattr(replay.Replay, "capture", fail)
    monkeypatch.setattr(constrained, "PATIENCE", 3)
    product = Product(on_device(small(2).chain), CONSTRAINT.compile(VOCAB), SENTENCES)
    product.side_by_side, product.graphs = True, OfOneThread()
    tokens = torch.tensor([0, 2], device=DEVICE)
    expected = product.extended(product.begin(2), tokens, False)
    counts = list[int]()
    for _ in range(13):
        torch.testing.assert_close(product.read(product.begin(2), tokens), expected)
        counts.append(len(attempts))
    assert counts == [0] * 4 + [1] * 8 + [2]
    assert not product.graphs


def test_no_thread_forgets_graphs_while_another_one_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(replay, "replayed", fail)
    graphs = OfOneThread({"a": None})
    work = partial(lambda moves, order, size, relaxed, values: values, Dense(torch.eye(2)), (), 1, False)
    assert constrained.prepared(work, (torch.ones(2),), graphs).tolist() == [1, 1]
    assert not graphs


class OfOneThread(dict[Hashable, Any]):
    """Graphs that only the thread that has the lock can forget."""

    def clear(self) -> None:
        assert replay.LOCK._is_owned()  # type: ignore[attr-defined]
        super().clear()


def test_a_matrix_written_out_for_one_constraint_has_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_anywhere(monkeypatch)
    chain = small(2, "softmax").chain
    likelihoods = Likelihoods.of(chain.emission)
    for _ in range(3):
        product = Product(chain, CONSTRAINT.compile(VOCAB), SENTENCES._replace(most=12), likelihoods)
        assert isinstance(product.moves, Dense)
    assert not likelihoods.graphs


@pytest.mark.parametrize(("length", "size"), [(1, 4), (10, 4), (12, 4), (1000, 16), (7, 256)])
def test_inversion_by_blocks(length: int, size: int) -> None:
    generator = seeded(length)
    weights = torch.rand(50, length, generator=generator, dtype=torch.float64)
    weights *= torch.rand(50, length, generator=generator, dtype=torch.float64) < 0.5
    weights[0] = 0.0
    uniform = torch.rand(50, 7, generator=generator, dtype=torch.float64)
    uniform[:, 0], uniform[:, 1] = 0.0, 1 - 1e-16
    found = invert_by_blocks(weights, uniform, size)
    for n in range(7):
        assert torch.equal(found[:, n], invert(weights, uniform[:, n]))
    positive = weights.sum(-1) > 0
    assert (weights.gather(-1, found)[positive] > 0).all()


def test_only_the_empty_sentence() -> None:
    """The automaton has no edges."""
    product = Product(small(2).chain, one_of([""]).compile(VOCAB), SENTENCES)
    wanted = product.log_prob(product.begin(2))
    product.side_by_side = True
    assert torch.equal(product.log_prob(product.begin(2)), wanted)
    assert sample(product, product.begin(2), seeded(0)) == [[], []]
