"""Inference under constraints, against the enumeration of all sentences in float64."""

from __future__ import annotations

import tracemalloc
from itertools import product as all_pairs
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import trellis
from constrained_cases import CASES
from trellis.constraints import Automaton, Constraint, contains, exactly, length
from trellis.constraints.automaton import side_by_side
from trellis.emissions import Categorical, Partition
from trellis.inference.constrained import Position, Product
from trellis.inference.constrained_lattice import Span
from trellis.inference.constrained_lengths import beyond, length_probs
from trellis.inference.constrained_sampling import sample
from trellis.inference.constrained_search import most_probable_path, most_probable_tokens
from trellis.inference.prefixes import Prefix, Prefixes
from trellis.inference.queries import Chain
from trellis.testing.oracle import SMALLEST_P, Paths, chi_square, sentences
from trellis.testing.problems import distributions, seeded
from trellis.transitions import Banded, Dense, LowRank, Nested, Softmax, Transition
from trellis.types import Belief

EXACT = 1e-10
WORDS, END, MOST = 3, 3, 4
VOCAB = trellis.Vocabulary(["a", "b", "c", "<eos>"], [1] * 4)
ROWS = [row for n in range(MOST + 1) for row in all_pairs(range(WORDS), repeat=n)]
SENTENCES, STREAM = Span(0, MOST, END), Span(3, 3, None)
examples = settings(max_examples=40, deadline=None, derandomize=True)


def transition(kind: str, states: int, generator: torch.Generator) -> Transition:
    if kind == "low rank":
        return LowRank(distributions(generator, states, 2), distributions(generator, 2, states).T.contiguous())
    if kind == "softmax":
        queries, keys = torch.randn(2, states, 2, generator=generator, dtype=torch.float64)
        return Softmax(queries, keys)
    if kind == "nested":  # two classes of states
        queries, keys = torch.randn(2, states, 2, generator=generator, dtype=torch.float64)
        return Nested(queries, keys, distributions(generator, states, 2).log())
    if kind == "banded":
        places = torch.arange(states).unsqueeze(-1) + torch.arange(3) - 1
        probs = distributions(generator, states, 3) * ((places >= 0) & (places < states))
        return Banded(probs / probs.sum(-1, keepdim=True))
    return Dense(distributions(generator, states, states, zeros=0.3 if kind == "sparse" else 0.0))


def emission(kind: str, states: int, generator: torch.Generator) -> Categorical:
    table = distributions(generator, states, WORDS + 1).T.log().contiguous()
    if kind == "all states":
        return Categorical(table, None, states)
    if kind == "classes":
        support: Tensor | Partition = Partition(torch.tensor([0, 1, 0, 1]), [states // 2, states - states // 2])
        ids = support.support
        allowed = torch.ones_like(ids, dtype=torch.bool) if support.allowed is None else support.allowed
    else:
        support = ids = torch.stack(
            [torch.randperm(states, generator=generator)[: states - 1] for _ in range(WORDS + 1)]
        )
        allowed = torch.ones_like(ids, dtype=torch.bool)
    weights = table.exp().gather(-1, ids) * allowed
    total = torch.zeros(states, dtype=torch.float64).index_add_(0, ids.flatten(), weights.flatten())
    return Categorical((weights / total[ids]).log(), support, states)


class Small(NamedTuple):
    """A chain, and p of all sentences (with <eos>) and of all streams of three tokens."""

    chain: Chain
    sentences: dict[tuple[int, ...], float]
    streams: dict[tuple[int, ...], float]


def small(seed: int, moves: str = "dense", emits: str = "all states", states: int = 3) -> Small:
    generator, states = seeded(seed), 4 if moves == "nested" else states
    prior, operator = distributions(generator, 1, states), transition(moves, states, generator)
    emitted = emission(emits, states, generator)
    matrix, table = operator.dense().numpy(), emitted.dense().exp().T.numpy()
    joints = [sentences(prior[0].numpy(), np.stack([matrix] * n) if n else np.zeros((0, states, states)), table)
              for n in range(MOST + 1)]  # fmt: skip
    ended = {row: float(joints[len(row)][(*row, END)]) for row in ROWS}
    streams = {row: float(joints[2][row]) for row in all_pairs(range(WORDS + 1), repeat=3)}
    return Small(Chain(Belief(prior), operator, emitted), ended, streams)


KINDS = [("dense", "all states"), ("sparse", "all states"), ("low rank", "all states"), ("softmax", "all states"),
         ("nested", "all states"), ("banded", "all states"),
         ("dense", "classes"), ("softmax", "classes"), ("low rank", "a support")]  # fmt: skip


def accepted(probs: dict[tuple[int, ...], float], automaton: Automaton, prefix: tuple[int, ...] = ()) -> dict:
    """The sequences that satisfy a constraint, with their probabilities."""
    return {row: p for row, p in probs.items() if row[: len(prefix)] == prefix and automaton.accepts(row)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("moves", "emits"), KINDS)
def test_probabilities_of_every_constraint(name: str, moves: str, emits: str) -> None:
    problem, automaton = small(1, moves, emits), CASES[name].compile(VOCAB)
    for span, probs in ((SENTENCES, problem.sentences), (STREAM, problem.streams)):
        product = Product(problem.chain, automaton, span)
        expected = accepted(probs, automaton)
        total = sum(expected.values())
        np.testing.assert_allclose(product.log_prob(product.begin()).exp(), total, rtol=EXACT, atol=1e-300)
        if total == 0:
            assert most_probable_tokens(product, product.begin()) is None
            continue
        lengths = np.zeros(span.most + 1)
        for row, p in expected.items():
            lengths[len(row)] += p / total
        np.testing.assert_allclose(length_probs(product, product.begin()), lengths, rtol=EXACT)
        best = most_probable_tokens(product, product.begin())
        assert best is not None
        assert best.proved
        np.testing.assert_allclose(np.exp(best.log_prob), max(expected.values()), rtol=EXACT)
        np.testing.assert_allclose(expected[tuple(best.tokens)], max(expected.values()), rtol=EXACT)


@pytest.mark.parametrize(("moves", "emits"), KINDS)
@pytest.mark.parametrize("name", ["a phrase", "both", "a template", "not", "tokens"])
def test_next_tokens_after_every_prefix(name: str, moves: str, emits: str) -> None:
    problem, automaton = small(2, moves, emits), CASES[name].compile(VOCAB)
    for span, probs in ((SENTENCES, problem.sentences), (STREAM, problem.streams)):
        product = Product(problem.chain, automaton, span)
        whole, prefixes = Product(problem.chain, CASES["anything"].compile(VOCAB), span), Prefixes(product, 5)
        for prefix in ((), (0,), (1,), (0, 1), (2, 0)):
            position = prefixes.positions([Prefix(prefix)])
            expected, before = accepted(probs, automaton, prefix), before_any(problem, prefix)
            total = sum(expected.values())
            np.testing.assert_allclose(product.log_prob(position).exp(), total / before, rtol=EXACT, atol=1e-300)
            found, words = product.joint(position)[0].exp() * before, np.zeros(WORDS + 1)
            for row, p in expected.items():
                words[row[len(prefix)] if len(row) > len(prefix) else END] += p
            np.testing.assert_allclose(found, words, rtol=EXACT, atol=1e-16)
            if total:
                np.testing.assert_allclose(
                    product.next_tokens(position)[0].exp(), words / total, rtol=EXACT, atol=1e-16
                )
        assert whole.log_prob(whole.begin()) <= 0


def before_any(problem: Small, prefix: tuple[int, ...]) -> float:
    """p(the first tokens)."""
    if not prefix:
        return 1.0
    return sum(p for row, p in problem.streams.items() if row[: len(prefix)] == prefix)


@pytest.mark.parametrize(("moves", "emits"), KINDS)
def test_the_whole_is_one(moves: str, emits: str) -> None:
    problem = small(3, moves, emits)
    for constraint in (contains("a b"), CASES["tokens"], length(2, 3)):
        total = 0.0
        for one in (constraint, ~constraint):
            product = Product(problem.chain, one.compile(VOCAB), SENTENCES)
            total += float(product.log_prob(product.begin()).exp())
        np.testing.assert_allclose(total + np.exp(beyond(product, product.begin())), 1.0, rtol=EXACT)


def test_bounds_on_the_length_are_those_of_the_constraint() -> None:
    problem = small(4)
    inside = Product(problem.chain, (contains("a") & length(2, 3)).compile(VOCAB), SENTENCES)
    outside = Product(problem.chain, contains("a").compile(VOCAB), Span(2, 3, END))
    np.testing.assert_allclose(inside.log_prob(inside.begin()), outside.log_prob(outside.begin()), rtol=EXACT)
    for product in (inside, outside):
        assert all(2 <= len(row) <= 3 and 0 in row for row in sample(product, product.begin(50), seeded(0)))


@pytest.mark.parametrize(("moves", "emits"), KINDS)
@pytest.mark.parametrize("name", ["a phrase", "both", "text"])
def test_samples_have_the_conditional_distribution(name: str, moves: str, emits: str) -> None:
    problem, automaton = small(5, moves, emits), CASES[name].compile(VOCAB)
    for span, probs in ((SENTENCES, problem.sentences), (STREAM, problem.streams)):
        expected = accepted(probs, automaton)
        if not sum(expected.values()):
            continue
        product, rows = Product(problem.chain, automaton, span), list(expected)
        drawn = [rows.index(tuple(row)) for row in sample(product, product.begin(4000), seeded(7))]
        weights = np.array(list(expected.values()))
        assert chi_square(np.array(drawn), weights / weights.sum()) > SMALLEST_P


def test_samples_after_a_prefix() -> None:
    problem, automaton = small(6), contains("b").compile(VOCAB)
    product, expected = Product(problem.chain, automaton, SENTENCES), accepted(problem.sentences, automaton, (0,))
    position = Prefixes(product).positions([Prefix((0,))] * 4000)
    rows, weights = list(expected), np.array(list(expected.values()))
    drawn = [rows.index((0, *row)) for row in sample(product, position, seeded(8))]
    assert chi_square(np.array(drawn), weights / weights.sum()) > SMALLEST_P


def test_lengths_where_all_longer_sentences_are_impossible() -> None:
    chain = small(1).chain
    assert isinstance(chain.emission, Categorical)
    table = chain.emission.dense().exp() * torch.tensor([1.0, 0.0, 1.0, 1.0]).unsqueeze(-1)  # no state emits "b"
    chain = chain._replace(emission=Categorical((table / table.sum(0)).log(), None, 3))
    product = Product(chain, (exactly("c") | exactly("a b b")).compile(VOCAB), SENTENCES)
    np.testing.assert_allclose(length_probs(product, product.begin()), np.arange(MOST + 1) == 1, rtol=EXACT)


@pytest.mark.parametrize(("moves", "emits"), KINDS)
@pytest.mark.parametrize("name", ["a phrase", "both", "a template", "one after the other"])
def test_states_and_tokens_together(name: str, moves: str, emits: str) -> None:
    problem, automaton = small(9, moves, emits), CASES[name].compile(VOCAB)
    table = problem.chain.emission.dense().exp().numpy()  # [V, K]
    matrix = problem.chain.transition.dense().numpy()
    product = Product(problem.chain, automaton, SENTENCES)
    found = most_probable_path(product, product.begin())
    best = 0.0
    for row in accepted(problem.sentences, automaton):
        paths = Paths(problem.chain.prior.probs[0].numpy(), np.stack([matrix] * len(row)), table[[*row, END]])
        best = max(best, paths.weights.max())
        if found is not None and tuple(found.tokens) == row:
            np.testing.assert_allclose(paths.weight(np.array(found.states)), np.exp(found.log_prob), rtol=EXACT)
    assert found is not None
    np.testing.assert_allclose(np.exp(found.log_prob), best, rtol=EXACT)


@pytest.mark.parametrize(("moves", "emits"), KINDS)
def test_states_and_tokens_of_a_stream(moves: str, emits: str) -> None:
    problem, automaton = small(9, moves, emits), CASES["a phrase"].compile(VOCAB)
    table, matrix = problem.chain.emission.dense().exp().numpy(), problem.chain.transition.dense().numpy()
    product = Product(problem.chain, automaton, STREAM)
    found = most_probable_path(product, product.begin())
    assert found is not None
    assert tuple(found.tokens) in accepted(problem.streams, automaton)
    prior, moves_of = problem.chain.prior.probs[0].numpy(), [matrix] * (STREAM.most - 1)
    paths = {row: Paths(prior, np.stack(moves_of), table[[*row]]) for row in accepted(problem.streams, automaton)}
    best = max(path.weights.max() for path in paths.values())
    np.testing.assert_allclose(np.exp(found.log_prob), best, rtol=EXACT)
    np.testing.assert_allclose(paths[tuple(found.tokens)].weight(np.array(found.states)), best, rtol=EXACT)


def random_automaton(seed: int | list[int], states: int) -> Automaton:
    draw = np.random.default_rng(seed)
    return Automaton(draw.integers(states, size=(states, 4)), draw.random(states) < 0.4, np.arange(4))


@examples
@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from(KINDS), st.integers(1, 3))
def test_random_automata(seed: int, states: int, kind: tuple[str, str], limit: int) -> None:
    problem, automaton = small(seed % 1000, *kind), random_automaton(seed, states)
    product, expected = Product(problem.chain, automaton, SENTENCES), accepted(problem.sentences, automaton)
    total = sum(expected.values())
    found = product.log_prob(product.begin()).exp()
    np.testing.assert_allclose(found, total, rtol=EXACT, atol=1e-300)
    best = most_probable_tokens(product, product.begin(), limit)
    assert (best is None) == (total == 0)
    if best is not None:
        np.testing.assert_allclose(np.exp(best.log_prob), expected[tuple(best.tokens)], rtol=EXACT)
        assert not best.proved or expected[tuple(best.tokens)] >= max(expected.values()) * (1 - EXACT)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_no_probability_exceeds_one(seed: int, dtype: torch.dtype) -> None:
    """A hundred random automata and prefixes each, 10,000 in all."""
    generator, states = seeded(seed), 4
    prior, matrix, table = (
        distributions(generator, *shape).to(dtype) for shape in ((1, states), (states,) * 2, (states, 4))
    )
    chain = Chain(Belief(prior), Dense(matrix), Categorical(table.T.log().contiguous(), None, states))
    together, starts = side_by_side([random_automaton([seed, n], 1 + n % 7) for n in range(100)])
    product = Product(chain, together, Span(0, 6, END), starts=starts)
    position = product.begin(100)._replace(states=torch.tensor(starts))
    for _ in range(seed % 4):
        position, _ = product.read(position, torch.randint(WORDS, (100,), generator=generator))
    before, scale = product.before(*position[1:])
    unclamped = (position.ahead.double() * before.double()).sum(-1).log() + scale
    assert unclamped.isfinite().sum() > 50
    assert (unclamped <= 8 * torch.finfo(dtype).eps).all()
    assert (product.log_prob(position) <= 0).all()
    assert (product.next_tokens(position).exp().sum(-1) <= 1 + 16 * torch.finfo(dtype).eps).all()


def test_improbable_constraints_do_not_underflow() -> None:
    """Twenty words of probability 1e-4 each, in float32: 1e-80 is far below its smallest number."""
    table = torch.tensor([[1e-4, 0.5, 0.25, 0.2499]] * 2).T.log().contiguous()
    even = torch.full((2, 2), 0.5)
    chain = Chain(Belief(even[:1]), Dense(even), Categorical(table, None, 2))
    product = Product(chain, contains("a", 20).compile(VOCAB), Span(0, 20, END))
    expected = 20 * np.log(1e-4) + np.log(0.2499)
    np.testing.assert_allclose(product.log_prob(product.begin()), expected, rtol=1e-6)
    assert sample(product, product.begin(3), seeded(0)) == [[0] * 20] * 3
    np.testing.assert_allclose(length_probs(product, product.begin())[20], 1.0, rtol=1e-6)


def test_a_probability_below_the_smallest_number_in_float64() -> None:
    """A hundred words of probability 1e-4 each."""
    table = torch.tensor([[1e-4, 0.5, 0.25, 0.2499]] * 2).T.log().contiguous()
    even = torch.full((2, 2), 0.5)
    chain = Chain(Belief(even[:1]), Dense(even), Categorical(table, None, 2))
    product = Product(chain, contains("a", 100).compile(VOCAB), Span(0, 100, END))
    expected = 100 * np.log(1e-4) + np.log(0.2499)
    for narrow in (False, True):
        product.side_by_side = narrow
        np.testing.assert_allclose(product.log_prob(product.begin()), expected, rtol=1e-6)
    assert sample(product, product.begin(2), seeded(0)) == [[0] * 100] * 2


def test_the_sum_of_a_class_that_states_hardly_emit() -> None:
    """State 0 emits the words b, c and d, the largest class, with probability 3e-7: not what is left of one."""
    table = torch.tensor([[1 - 1.3e-6, 1e-7, 1e-7, 1e-7, 1e-6], [0.1, 0.3, 0.2, 0.2, 0.2]], dtype=torch.float32)
    even = torch.full((2, 2), 0.5)
    chain = Chain(Belief(even[:1]), Dense(even), Categorical(table.T.log().contiguous(), None, 2))
    vocab = trellis.Vocabulary(["a", "b", "c", "d", "<eos>"], [1] * 5)
    product = Product(chain, contains("a").compile(vocab), Span(0, 3, 4))
    np.testing.assert_allclose(product.totals[product.emission.largest], [3e-7, 0.7], rtol=1e-5)


@pytest.mark.parametrize(("seed", "states", "automaton_states"), [(58, 3, 4), (4, 5, 3)])
def test_the_search_stops_at_its_limit(seed: int, states: int, automaton_states: int) -> None:
    """With one prefix at a time, the search misses the best sentence of these problems, and does not claim it. In the
    second problem, only the first of the prefixes dropped leads to the best sentence."""
    problem, automaton = small(seed, states=states), random_automaton(seed, automaton_states)
    product, expected = Product(problem.chain, automaton, SENTENCES), accepted(problem.sentences, automaton)
    stopped, ended = (most_probable_tokens(product, product.begin(), limit) for limit in (1, 100))
    assert stopped is not None
    assert ended is not None
    assert (stopped.proved, ended.proved) == (False, True)
    assert expected[tuple(stopped.tokens)] < max(expected.values()) * (1 - EXACT)
    np.testing.assert_allclose(expected[tuple(ended.tokens)], max(expected.values()), rtol=EXACT)


@pytest.mark.parametrize(("name", "moves", "seed"), [("a phrase", "dense", 1), ("a word", "sparse", 3)])
def test_a_sentence_that_ends_takes_no_place_among_the_prefixes(name: str, moves: str, seed: int) -> None:
    """In these problems, one prefix of each length is enough to prove the best sentence."""
    problem, automaton = small(seed, moves), CASES[name].compile(VOCAB)
    expected = accepted(problem.sentences, automaton)
    product = Product(problem.chain, automaton, SENTENCES)
    best = most_probable_tokens(product, product.begin(), 1)
    assert best is not None
    assert best.proved
    np.testing.assert_allclose(expected[tuple(best.tokens)], max(expected.values()), rtol=EXACT)


@pytest.mark.parametrize("name", ["anything", "a phrase", "at most"])
def test_the_end_may_have_any_id(name: str) -> None:
    """The most probable sentence is the same if <eos> is the first token instead of the last."""
    problem, order = small(4), [END, *range(WORDS)]
    chain = problem.chain._replace(emission=Categorical(problem.chain.emission.dense()[order], None, 3))
    vocab = trellis.Vocabulary([VOCAB.words[i] for i in order], [1] * 4)
    product = Product(chain, CASES[name].compile(vocab), Span(0, MOST, 0))
    expected = accepted(problem.sentences, CASES[name].compile(VOCAB))
    best = most_probable_tokens(product, product.begin())
    assert best is not None
    assert best.proved
    np.testing.assert_allclose(np.exp(best.log_prob), max(expected.values()), rtol=EXACT)
    np.testing.assert_allclose(expected[tuple(i - 1 for i in best.tokens)], max(expected.values()), rtol=EXACT)


@pytest.mark.parametrize("states", [1, 3])
def test_constraints_leave_the_emission_as_it_is(states: int) -> None:
    """Also if its table is in column-major order, as that of a single state always is."""
    problem, automaton = small(5, states=states), CASES["a word"].compile(VOCAB)
    table = problem.chain.emission.dense().T.contiguous().T
    kept = table.clone()
    for _ in range(2):
        product = Product(problem.chain._replace(emission=Categorical(table, None, states)), automaton, SENTENCES)
        expected = sum(accepted(problem.sentences, automaton).values())
        np.testing.assert_allclose(product.log_prob(product.begin()).exp(), expected, rtol=EXACT)
    assert table.equal(kept)


def test_a_sentence_that_is_too_long_cannot_end() -> None:
    product = Product(small(5).chain, CASES["anything"].compile(VOCAB), SENTENCES)
    position = Prefixes(product).positions([Prefix((0,) * n, ()) for n in (MOST, MOST + 1)])
    assert position.steps.tolist() == [MOST, MOST + 1]
    assert product.next_tokens(position).exp().tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


def test_prefixes_are_kept_within_the_size_of_the_cache() -> None:
    problem, automaton = small(11), contains("a b").compile(VOCAB)
    product, rows = Product(problem.chain, automaton, SENTENCES), [Prefix(row, (2, 1)) for row in ROWS if len(row) < 4]
    together, cache = Prefixes(product, 1000).positions(rows), Prefixes(product, 3)
    for number, row in enumerate(rows):
        alone = cache.positions([row])
        assert len(cache.kept) <= 3
        assert alone.ahead.allclose(together.ahead[number : number + 1], rtol=EXACT)
        assert (alone.steps, alone.states) == (together.steps[number], together.states[number])


def test_reading_a_long_prompt_takes_quadratic_time() -> None:
    """Prefixes of up to n tokens are built, and then only that of the context itself."""

    class Ids(tuple):
        built = 0

        def __getitem__(self, places):
            found = super().__getitem__(places)
            Ids.built += len(found) if isinstance(found, tuple) else 0
            return Ids(found) if isinstance(found, tuple) else found

    product, number = Product(small(11).chain, contains("a b").compile(VOCAB), Span(0, 100, END)), 80
    prefixes = Prefixes(product)
    prefixes.positions([Prefix((), Ids([1] * number))])
    assert Ids.built <= 2 * number**2
    Ids.built = 0
    prefixes.positions([Prefix((0,), Ids([1] * number))])
    assert Ids.built <= number


def test_a_batch_larger_than_the_cache_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    product = Product(small(11).chain, contains("a b").compile(VOCAB), SENTENCES)
    cache, reads, read = Prefixes(product, 2), list[int](), product.read

    def counted(position: Position, tokens: Tensor, context: bool) -> Any:
        reads.append(len(tokens))
        return read(position, tokens, context)

    monkeypatch.setattr(product, "read", counted)
    for size in range(4):
        cache.positions([Prefix((n, *(1,) * size), (2, 0)) for n in range(3)])
        assert len(cache.kept) == 3
    assert reads == [3] * 6  # two tokens of the context, then four
    cache.positions([Prefix(())])
    assert len(cache.kept) == 2


def test_the_memory_for_a_long_context_is_proportional_to_its_length() -> None:
    product = Product(small(11).chain, contains("a b").compile(VOCAB), SENTENCES)
    tracemalloc.start()
    try:
        Prefixes(product).positions([Prefix((0,), (1, 2) * 750)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2e6  # the beginnings of the context are 9 MB together


def test_a_token_of_the_context_is_not_read_by_the_automaton() -> None:
    problem, automaton = small(12), contains("a", 0, 0).compile(VOCAB)
    product = Product(problem.chain, automaton, Span(0, 2, END))
    position = Prefixes(product).positions([Prefix((1,), (0,))])
    assert position.steps.tolist() == [1]
    expected = sum(
        p for row, p in problem.sentences.items() if row[:2] == (0, 1) and len(row) < 4 and row.count(0) == 1
    )
    np.testing.assert_allclose(product.log_prob(position).exp(), expected / before_any(problem, (0, 1)), rtol=EXACT)


def test_only_pairs_that_matter_are_computed() -> None:
    """A template has one state of the automaton for each length."""
    chain = small(13).chain
    product = Product(chain, CASES["exactly"].compile(VOCAB), SENTENCES)
    assert len(product.messages.values) == 3 + 1


def test_too_large_messages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.inference.constrained.LARGEST", 10)
    with pytest.raises(trellis.TrellisError, match="more than fit into memory"):
        Product(small(1).chain, Constraint.compile(contains("a"), VOCAB), SENTENCES)


def test_the_mass_of_longer_texts() -> None:
    """In a stream there are none; sentences that do not end within `most` tokens are enumerated."""
    for moves, emits in KINDS:
        case = small(2, moves, emits)
        product = Product(case.chain, CASES["anything"].compile(VOCAB), SENTENCES)
        longer = np.exp(beyond(product, product.begin()))
        assert longer == pytest.approx(1 - sum(case.sentences.values()), abs=EXACT)
        stream = Product(case.chain, CASES["anything"].compile(VOCAB), STREAM)
        assert beyond(stream, stream.begin()) == -np.inf
