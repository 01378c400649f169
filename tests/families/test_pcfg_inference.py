"""Inference under a grammar against the enumeration of all its derivations, in float64."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from pcfg_oracle import Node, Oracle, random_grammar
from trellis.emissions import Categorical, Partition
from trellis.families.pcfg.generate import Generator
from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.inside import inside, log_likelihoods, log_words, read_words
from trellis.families.pcfg.prefix import Closure, Prefix, token_log_probs
from trellis.families.pcfg.queries import Gaps, Tight, expected_counts, posterior
from trellis.families.pcfg.trees import Logs, Sampler, Splits, safest_splits, viterbi_splits
from trellis.inference import discrete
from trellis.kernels import inside as kernels
from trellis.transitions import Dense
from trellis.types import Belief

EXACT = 1e-10
FLOAT = 1e-4  # of log-probabilities in float32
RANKS = [None, 1, 3]
SENTENCES = [(1, 2, 2, 1), (2, 1), (2,), (), (1, 1, 2)]
DRAWS, LEAST = 4000, 1e-3  # samples of a chi-square test, and its smallest p-value

every_rank = pytest.mark.parametrize("rank", RANKS)


def padded(sentences: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(one) for one in sentences])
    tokens = torch.zeros(len(sentences), max(1, int(lengths.max())), dtype=torch.int64)
    for row, one in enumerate(sentences):
        tokens[row, : len(one)] = torch.tensor(one, dtype=torch.int64)
    return tokens, lengths


def full(table: torch.Tensor) -> Categorical:
    """log p(x | T) [V, P] of preterminals that can emit every word."""
    return Categorical(table, None, table.shape[1])


def grammar_of(rank: int | None, seed: int = 0) -> Grammar:
    return random_grammar(2, 2, rank, 3, seed)


def close(found: torch.Tensor, expected: object, tolerance: float = EXACT) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64).detach().numpy()
    np.testing.assert_allclose(found.detach().double().numpy(), wanted, rtol=tolerance, atol=tolerance)


def scored(grammar: Grammar, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    words = read_words(grammar, tokens, lengths)
    return token_log_probs(Closure(grammar), words, inside(grammar, words, lengths), lengths)


@pytest.fixture(params=["compiled", "torch"])
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(kernels, "on_cpu", lambda chart: False)
    else:
        pytest.importorskip("numba", reason="numba is not installed")


@every_rank
@pytest.mark.usefixtures("passes")
def test_probabilities_of_sentences(rank: int | None) -> None:
    grammar = grammar_of(rank)
    oracle, mass = Oracle(grammar), grammar.finite.total.log()
    close(log_likelihoods(grammar, *padded(SENTENCES)) + mass, [math.log(oracle.prob(one)) for one in SENTENCES])
    gaps = [(1, -1, 2), (-1,), (-1, -1)]
    close(log_likelihoods(grammar, *padded(gaps)) + mass, [math.log(oracle.prob(one)) for one in gaps])


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("sizes", [(2, 2), (1, 3)])
@pytest.mark.usefixtures("passes")
def test_preterminals_of_classes_of_words(rank: int | None, sizes: tuple[int, int]) -> None:
    """Everything that reads words, against the same grammar with all emissions written out."""
    partition = Partition(torch.tensor([0, 1, 0, 1, 0]), sizes)
    grammar = random_grammar(2, 4, rank, 5, partition=partition)
    given = grammar.root, grammar.ranks, grammar.lefts, grammar.rights
    same, sentences = Grammar(*given, full(grammar.emission.dense())), [(1, 2, 3, 4), (3,), (), (2, 1)]
    given = padded(sentences)
    oracle, mass = Oracle(grammar), grammar.finite.total.log()
    close(log_likelihoods(grammar, *given) + mass, [math.log(oracle.prob(one)) for one in sentences])
    close(scored(grammar, *given), scored(same, *given))
    close(posterior(grammar, *given).words, posterior(same, *given).words)
    gaps = padded([(1, -1, 2), (-1,)])
    close(log_likelihoods(grammar, *gaps), log_likelihoods(same, *gaps))
    close(Gaps(grammar, None).distribution(*gaps)[0], Gaps(same, None).distribution(*gaps)[0])
    found, wanted = (expected_counts(one, *given) for one in (grammar, same))
    for one, other in ((found.start, wanted.start), (found.transition, wanted.transition)):
        close(one, other)
    close(found.emission, wanted.emission.gather(1, partition.support))
    states = [Prefix.begin(Closure(one), 1).extend(Closure(one), torch.tensor([3])) for one in (grammar, same)]
    close(states[0].forecast(grammar, 0), states[1].forecast(same, 0))
    rows = [Generator(one).sample(20, 5, 0, np.random.default_rng(0)) for one in (grammar, same)]
    assert torch.equal(*rows)


@every_rank
@pytest.mark.parametrize("seed", [0, 1])
def test_all_strings_have_the_probability_one(rank: int | None, seed: int) -> None:
    """Those of up to n words, and the sentences that begin with n + 1 words."""
    grammar, longest = grammar_of(rank, seed), 4
    strings = [one for n in range(longest + 1) for one in product((1, 2), repeat=n)]
    prefixes = list(product((1, 2), repeat=longest + 1))
    short = log_likelihoods(grammar, *padded(strings)).exp().sum()
    rest = scored(grammar, *padded(prefixes))[:, :-1].sum(1).exp().sum()
    close(short + rest, 1.0)


def test_after_an_impossible_word_nothing_is_lost() -> None:
    """A second word is impossible: the probability of the sentence is zero, not undefined."""
    words = torch.tensor([[-torch.inf], [0.0], [0.0]], dtype=torch.float64) - math.log(2)
    one = torch.ones(1, dtype=torch.float64)
    grammar = Grammar(torch.tensor([0.0, 1.0, 0.0]).double(), None, *[torch.stack([0 * one, one])] * 2, full(words))
    found = scored(grammar, *padded([(1, 2, 1), (2,)]))
    close(found, [[-math.log(2), -math.inf, 0, 0], [-math.log(2), 0, 0, 0]])
    state = Prefix.begin(Closure(grammar), 1)
    for word in (1, 2, 1):
        state = state.extend(Closure(grammar), torch.tensor([word]))
    assert float(state.log_prefix) == -math.inf


def test_the_mass_of_finite_trees() -> None:
    """A -> A A with probability q^2, else fewer As: finite with the smallest root of g = (1 - q + q g)^2."""
    for q in (0.3, 0.5, 0.7):
        rules = torch.tensor([[q], [1 - q]], dtype=torch.float64)
        words = torch.tensor([[-torch.inf], [0.0]], dtype=torch.float64)
        root = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        grammar = Grammar(root, None, rules, rules, full(words))
        close(grammar.finite.total, min(1.0, ((1 - q) / q) ** 2))
    close(Grammar(root, None, rules, rules, full(words)).finite.right, (1 - q) / q)
    ignored = Tight(root.float(), None, rules.float(), rules.float(), full(words.float()))
    assert [float(one.finite.total) for one in (ignored, ignored.double())] == [1, 1]


@every_rank
def test_next_words_word_by_word(rank: int | None) -> None:
    """The state after some words, in batches of sentences that begin and end at different times."""
    grammar = grammar_of(rank, 3)
    closure, (tokens, lengths) = Closure(grammar), padded(SENTENCES)
    expected, state = scored(grammar, tokens, lengths), Prefix.begin(Closure(grammar), len(tokens))
    for t in range(tokens.shape[1] + 1):
        forecast = state.forecast(grammar, 0)
        close(forecast.exp().sum(1), np.ones(len(tokens)))
        ended = lengths == t
        word = torch.where(ended, 0, tokens[:, min(t, tokens.shape[1] - 1)])
        now = t <= lengths
        close(forecast.gather(1, word[:, None])[now, 0], expected[now, t])
        after = state.extend(closure, word.clamp(min=1))
        state = after.where(t < lengths, Prefix.begin(closure, len(tokens)).where(ended, state))


@every_rank
def test_prefixes_sum_over_their_continuations(rank: int | None) -> None:
    """p(x_1 x_2 ...) = p(x_1 x_2) + sum over x_3 of p(x_1 x_2 x_3 ...)."""
    grammar = grammar_of(rank, 4)
    oracle, mass = Oracle(grammar), float(grammar.finite.total)
    shorter = scored(grammar, *padded([(1, 2, 1)]))[0, :2].sum().exp()
    longer = scored(grammar, *padded([(1, 2, 1), (1, 2, 2)]))[:, :3].sum(1).exp().sum()
    close(shorter, float(longer) + oracle.prob((1, 2)) / mass)


@every_rank
@pytest.mark.usefixtures("passes")
def test_posteriors_and_expected_counts(rank: int | None) -> None:
    grammar, sentences = grammar_of(rank), [(1, 2, 2, 1), (2,), (1, 1, 2)]
    tokens, lengths = padded(sentences)
    found, counts = posterior(grammar, tokens, lengths), expected_counts(grammar, tokens, lengths)
    oracle = Oracle(grammar)
    N, root, u, v, w = 2, np.zeros(5), *(np.zeros_like(one) for one in (oracle.u, oracle.v, oracle.w))
    words, length = np.zeros((3, 2)), tokens.shape[1]
    for row, sentence in enumerate(sentences):
        spans, tags, total = np.zeros(len(found.spans)), np.zeros((length, 2)), oracle.prob(sentence)
        for tree, p in oracle.derivations(sentence):
            root[tree.symbol] += p / total
            for node in tree.nodes():
                if node.children:
                    spans[kernels.begin(length, node.stop - node.start) + node.start] += p / total
                    u[node.symbol, node.rank] += p / total
                    v[node.children[0].symbol, node.rank] += p / total
                    w[node.children[1].symbol, node.rank] += p / total
                else:
                    tags[node.start, node.symbol - N] += p / total
                    words[sentence[node.start], node.symbol - N] += p / total
        close(found.spans[:, row], spans)
        close(found.words[row], tags)
    close(counts.start, root)
    rules = [v, w] if rank is None else [u, v, w]
    close(counts.transition, np.concatenate([one.ravel() for one in rules]))
    close(counts.emission, words)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("rank", [None, 2])
def test_gradients(rank: int | None) -> None:
    """Of the log-likelihood and of prefixes, the mass of finite trees included, against finite differences."""
    base = next(one for one in (grammar_of(rank, seed) for seed in range(20)) if float(one.finite.total) < 1)
    given = [one.log() for one in (base.root, base.lefts, base.rights)] + [base.emission.table[1:]]
    given += [] if base.ranks is None else [base.ranks.log()]
    tokens, lengths = padded([(1, 2, 1), (2,), ()])

    def grammar(root: torch.Tensor, left: torch.Tensor, right: torch.Tensor, words: torch.Tensor, *rank: torch.Tensor):
        table = torch.cat([words.new_full((1, 2), -torch.inf), words.log_softmax(0)])
        ranks = rank[0].softmax(1) if rank else None
        return Grammar(root.softmax(0), ranks, left.softmax(0), right.softmax(0), full(table))

    leaves = [one.detach().requires_grad_() for one in given]
    assert torch.autograd.gradcheck(lambda *one: log_likelihoods(grammar(*one), tokens, lengths), leaves)
    assert torch.autograd.gradcheck(lambda *one: scored(grammar(*one), tokens, lengths), leaves)


def test_long_sentences_do_not_underflow() -> None:
    grammar = random_grammar(4, 5, 3, 50, spread=2.0)
    tokens, lengths = torch.randint(1, 50, (2, 100)), torch.tensor([100, 90])
    exact = log_likelihoods(grammar, tokens, lengths)
    assert bool((exact < -300).all())
    rules = (one.float() for one in (grammar.root, grammar.ranks, grammar.lefts, grammar.rights))
    single = Grammar(*rules, full(grammar.emission.table.float()))
    close(log_likelihoods(single, tokens, lengths), exact, FLOAT)
    close(scored(single, tokens, lengths).sum(1), exact, FLOAT)


def test_what_float32_cannot_hold_is_repeated_in_float64() -> None:
    """Spans whose most probable reading fits nowhere, and whose only useful one is 1e-60 times as probable."""
    rare = 1e-30
    right = torch.tensor([[0.0, 0.0], [0.0, 1 - rare], [1 - rare, rare], [rare, 0.0]], dtype=torch.float64)
    left = torch.tensor([[0.0, rare], [0.0, 0.0], [1 - rare, 1 - rare], [rare, 0.0]], dtype=torch.float64)
    root = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    words = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).log()
    grammar, (tokens, lengths) = Grammar(root, None, left, right, full(words)), padded([(2, 2, 1), (2, 1, 1)])
    exact = log_likelihoods(grammar, tokens, lengths)
    single = Grammar(root.float(), None, left.float(), right.float(), full(words.float()))
    close(log_likelihoods(single, tokens, lengths), exact, FLOAT)
    close(exact.exp(), [Oracle(grammar).prob(one) for one in ((2, 2, 1), (2, 1, 1))])


@every_rank
def test_most_probable_derivations(rank: int | None) -> None:
    grammar, sentences = grammar_of(rank, 6), [(1, 2, 2, 1), (1, 2), (2,), (2, 2, 1)]
    logs, oracle, (tokens, lengths) = Logs(grammar), Oracle(grammar), padded(sentences)
    splits = viterbi_splits(logs, log_words(grammar, tokens.T), lengths.tolist())
    for row, sentence in enumerate(sentences):
        best, _ = max(oracle.derivations(sentence), key=lambda one: one[1])
        words = log_words(grammar, tokens)[row, : len(sentence)].numpy()
        tree = logs.labelled(splits[row], words)
        assert [one[:3] for one in tree.nodes()] == [one[:3] for one in best.nodes()]
        same = [p for node, p in oracle.derivations(sentence) if shape(node) == shape(best)]
        assert math.isclose(logs.log_prob(tree, words), math.log(math.fsum(same)), rel_tol=EXACT)


@pytest.mark.parametrize("splits", [{(0, 3): 1, (1, 3): 2}, {(0, 3): 2, (0, 2): 1}])
def test_labels_of_splits_that_no_derivation_has(splits: Splits) -> None:
    """No left child is a preterminal, so every tree is impossible. Single words still have preterminals."""
    grammar = grammar_of(None, 6)
    left = grammar.lefts * torch.tensor([[1.0], [1.0], [0.0], [0.0]], dtype=torch.float64)
    logs = Logs(Grammar(grammar.root, None, left / left.sum(0), grammar.rights, grammar.emission))
    words = log_words(grammar, torch.tensor([1, 2, 2])).numpy()
    tree = logs.labelled(splits, words)
    assert all((one.symbol < 2) == bool(one.children) for one in tree.nodes())
    assert logs.log_prob(tree, words) == -math.inf


def shape(node: Node) -> tuple[tuple[int, int, int], ...]:
    """A tree without its ranks."""
    return tuple((one.start, one.stop, one.symbol) for one in node.nodes())


@every_rank
def test_trees_of_minimum_bayes_risk(rank: int | None) -> None:
    grammar, sentence = grammar_of(rank, 7), (1, 2, 2, 1)
    spans, trees = Counter(), {}
    for tree, p in Oracle(grammar).derivations(sentence):
        wide = frozenset((one.start, one.stop) for one in tree.nodes() if one.children)
        trees[wide] = 0.0
        spans.update(dict.fromkeys(wide, p))
    best = max(trees, key=lambda wide: sum(spans[one] for one in wide))
    found = posterior(grammar, *padded([(1, 2), sentence, (2,)])).spans
    splits = safest_splits(found, 4, [2, 4, 1])
    assert splits[0] == {(0, 2): 1}
    assert splits[1].keys() == best
    assert all(start < middle < stop for (start, stop), middle in splits[1].items())
    assert splits[2] == {}


@pytest.mark.parametrize("rank", [None, 2])
def test_samples_of_trees(rank: int | None) -> None:
    grammar, sentence = grammar_of(rank, 8), (1, 2, 1)
    probs: Counter = Counter()
    for tree, p in Oracle(grammar).derivations(sentence):
        probs[shape(tree)] += p
    tokens, lengths = padded([(2, 1), sentence])
    charts = posterior(grammar, tokens, lengths).charts
    sampler = Sampler(grammar, charts, log_words(grammar, tokens)[1].exp().numpy(), 1)
    random = np.random.default_rng(0)
    drawn = Counter(shape(sampler.sample(3, random)) for _ in range(DRAWS))
    assert drawn.keys() <= probs.keys()
    assert agrees(drawn, probs)


@pytest.mark.parametrize("seed", [0, 1])
def test_samples_of_sentences(seed: int) -> None:
    """Of grammars that lose probability to infinite trees, too; longer sentences are cut."""
    grammar, most = grammar_of(None, seed), 3
    strings = [one for n in range(most) for one in product((1, 2), repeat=n)]
    begun = list(product((1, 2), repeat=most))
    probs = [*log_likelihoods(grammar, *padded(strings)), *scored(grammar, *padded(begun))[:, :-1].sum(1)]
    expected = Counter({one: float(p.exp()) for one, p in zip([*strings, *begun], probs, strict=True)})
    drawn = Generator(grammar).sample(DRAWS, most, 0, np.random.default_rng(0)).tolist()
    assert agrees(Counter(tuple(x for x in row if x) for row in drawn), expected)


def agrees(drawn: Counter, probs: Counter) -> bool:
    """A chi-square test, with the rare outcomes in one cell."""
    total = math.fsum(probs.values())
    common = [one for one, p in probs.items() if p / total * DRAWS >= 5]
    expected = [probs[one] / total * DRAWS for one in common]
    seen = [drawn[one] for one in common]
    rest = DRAWS - sum(expected)
    if rest > 1:
        expected, seen = [*expected, rest], [*seen, DRAWS - sum(seen)]
    return bool(chisquare(seen, np.array(expected) * sum(seen) / sum(expected)).pvalue > LEAST)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("complete", [True, False])
def test_gaps(rank: int | None, complete: bool) -> None:
    """Distributions, samples and best words of gaps, in sentences that end or may continue."""
    grammar, sentence = grammar_of(rank, 9), (1, -1, 2, -1)
    closure = None if complete else Closure(grammar)
    gaps, (tokens, lengths) = Gaps(grammar, closure), padded([sentence])
    filled = [(1, one, 2, other) for one, other in product((1, 2), repeat=2)]
    many, ends = padded(filled)
    exact = log_likelihoods(grammar, many, ends) if complete else scored(grammar, many, ends)[:, :-1].sum(1)
    probs = Counter(dict(zip(filled, exact.exp().tolist(), strict=True)))
    given, log_prob = gaps.distribution(tokens, lengths)
    total = math.fsum(probs.values())
    close(log_prob, [math.log(total)])
    for t in (1, 3):
        close(given[0, t, 1:], [math.fsum(p for one, p in probs.items() if one[t] == x) / total for x in (1, 2)])
    random = torch.rand(DRAWS, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = gaps.sample(tokens.expand(DRAWS, -1), lengths.expand(DRAWS), random)
    assert agrees(Counter(map(tuple, drawn.tolist())), probs)
    one = padded([(1, -1, 2)])
    best = gaps.best(*one)[0, 1]
    assert int(best) == int(gaps.distribution(*one)[0][0, 1].argmax())
    assert tuple(gaps.best(tokens, lengths)[0].tolist()) in probs


def test_a_right_linear_grammar_is_a_hidden_markov_model() -> None:
    """A_z -> T_z A_z' or, before the end, T_z T_z'. The HMM has a last state that emits <eos>."""
    K, V = 3, 4
    generator = torch.Generator().manual_seed(1)
    start, moves = (torch.rand(n, K + 1, generator=generator, dtype=torch.float64) for n in (1, K))
    start[:, -1] = 0
    start, moves = start[0] / start.sum(), moves / moves.sum(1, keepdim=True)
    words = torch.rand(V, K, generator=generator, dtype=torch.float64)
    words[0] = 0
    words = words / words.sum(0)
    ends = moves[:, -1]
    going = moves[:, :-1] / (1 - ends)[:, None]  # given that another word follows
    right = torch.cat([(going * (1 - ends)).T, (going * ends).T])
    left = torch.cat([torch.zeros(K, K, dtype=torch.float64), torch.eye(K, dtype=torch.float64)])
    root = torch.cat([start[:-1] * (1 - ends), start[:-1] * ends, torch.zeros(1, dtype=torch.float64)])
    grammar = Grammar(root, None, left, right, full(words.log()))
    table = torch.zeros(V, K + 1, dtype=torch.float64)
    table[:, :-1], table[0, -1] = words, 1
    tokens, lengths = padded([(1, 2, 3, 1, 1, 2), (3,), (2, 1, 1)])
    ended = torch.cat([tokens, torch.zeros_like(tokens[:, :1])], 1)
    matrix = torch.cat([moves, torch.eye(K + 1, dtype=torch.float64)[-1:]])
    potentials = full(table.log()).potentials(ended)
    given = Belief(start.expand(3, -1)), Dense(matrix), potentials, lengths + 1
    close(scored(grammar, tokens, lengths), discrete.score(*given)[0])
    states = discrete.smooth(*given).probs[:, :-1, :-1]
    inside_sentence = torch.arange(6) < lengths[:, None]
    close(posterior(grammar, tokens, lengths).words, states * inside_sentence[..., None])
