"""Trees of sentences: of minimum Bayes risk, most probable (Viterbi), or sampled given the words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from trellis.families.pcfg.generate import draw as drawn
from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.inside import Charts, check_charts
from trellis.kernels.inside import begin, block, pairs

ENTRIES = 1 << 24  # of a max-plus product, in memory
VITERBI_CHARTS = 3  # in memory
LEAST = -1e12  # the logarithm of an impossible choice within a tree, which is worse than any number of possible ones
Span = tuple[int, int]
Splits = dict[
    Span, int
]  # where spans of two words or more are split: those of the binary tree of a sentence, and others


class Node(NamedTuple):
    """A constituent: the words [start, stop), its symbol (those from N on are preterminals) and its children."""

    start: int
    stop: int
    symbol: int
    children: tuple[Node, ...] = ()

    def nodes(self) -> Iterator[Node]:
        """This node and all below it, from left to right, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)


def grow(root: tuple[int, int, Any], expand: Callable[[int, int, Any], tuple[int, list[Any]]]) -> Node:
    """The tree of `expand(start, stop, state)`, which returns a symbol and the triples of the children, if any."""
    order, waiting = [], [root]
    while waiting:
        start, stop, state = waiting.pop()
        symbol, children = expand(start, stop, state)
        order.append((start, stop, symbol, len(children)))
        waiting += reversed(children)
    done: list[Node] = []
    for start, stop, symbol, count in reversed(order):
        done.append(Node(start, stop, symbol, tuple(done.pop() for _ in range(count))))
    return done[0]


def safest_splits(spans: Tensor, total: int, lengths: list[int]) -> list[Splits]:
    """The binary trees whose spans have the largest sums of probabilities, of sentences of at least one word. `spans`
    [S, B] has the probability of each span in charts of `total` words."""
    best, cuts = torch.zeros_like(spans), torch.zeros_like(spans, dtype=torch.int64)
    for width in range(2, total + 1):
        sums = torch.stack([best[one] + best[other] for one, other in pairs(total, width)])
        now, top = block(total, width), sums.max(0)
        best[now], cuts[now] = top.values + spans[now], top.indices + 1
    array, found = cuts.cpu().numpy(), []
    for row, length in enumerate(lengths):
        splits: Splits = {}
        waiting = [(0, length)]
        while waiting:
            start, stop = waiting.pop()
            if stop - start > 1:
                middle = splits[start, stop] = start + int(array[begin(total, stop - start) + start, row])
                waiting += [(start, middle), (middle, stop)]
        found.append(splits)
    return found


class Logs:
    """The logarithms of a grammar's probabilities, in float64, as arrays."""

    def __init__(self, grammar: Grammar) -> None:
        self.nonterminals = grammar.nonterminals
        ranks = grammar.ranks_table
        given = grammar.root, ranks, grammar.lefts, grammar.rights
        self.tensors = [one.detach().double().log() for one in given]
        self.root, self.ranks, self.lefts, self.rights = (one.cpu().numpy() for one in self.tensors)

    def log_prob(self, root: Node, words: np.ndarray) -> float:
        """log p(tree, words), with the ranks of its rules summed; words are given as log p(x | T) [L, P]."""
        total = float(self.root[root.symbol])
        for node in root.nodes():
            if node.children:
                left, right = (child.symbol for child in node.children)
                total += float(np.logaddexp.reduce(self.ranks[node.symbol] + self.lefts[left] + self.rights[right]))
            else:
                total += float(words[node.start, node.symbol - self.nonterminals])
        return total

    def labelled(self, splits: Splits, words: np.ndarray) -> Node:
        """The tree with these splits that has the most probable symbols and ranks, over words given as
        log p(x | T) [L, P]. If no such tree is possible, the one with the fewest choices that are not."""
        best: dict[Span, tuple[Tensor, Tensor]] = {}  # of spans: [N + P] of symbols, [R] of ranks
        root, rules, lefts, rights = (one.clamp(min=LEAST) for one in self.tensors)
        for i, row in enumerate(torch.from_numpy(words).to(root.device).clamp(min=LEAST)):
            best[i, i + 1] = pad(row, (self.nonterminals, 0), value=-torch.inf), rules[0]
        for start, stop in sorted(splits, key=lambda span: span[1] - span[0]):
            one, other = best[start, splits[start, stop]][0], best[splits[start, stop], stop][0]
            ranks = (lefts + one[:, None]).amax(0) + (rights + other[:, None]).amax(0)
            symbols = pad((rules + ranks).amax(1), (0, len(lefts) - self.nonterminals), value=-torch.inf)
            best[start, stop] = symbols, ranks

        def expand(start: int, stop: int, symbol: int) -> tuple[int, list[Any]]:
            if stop - start == 1:
                return symbol, []
            rank, middle = int((rules[symbol] + best[start, stop][1]).argmax()), splits[start, stop]
            left = int((lefts[:, rank] + best[start, middle][0]).argmax())
            right = int((rights[:, rank] + best[middle, stop][0]).argmax())
            return symbol, [(start, middle, left), (middle, stop, right)]

        roots = root[:-1] + best[0, len(words)][0]
        return grow((0, len(words), int(roots.argmax())), expand)


def viterbi_splits(logs: Logs, log_words: Tensor, lengths: list[int]) -> list[Splits]:
    """The splits of the most probable derivations of sentences, with words given as log p(x | T) [L, B, P]."""
    root, ranks, lefts, rights = (one.to(log_words.device) for one in logs.tensors)
    count, (length, batch, _) = logs.nonterminals, log_words.shape
    steps = [best_product(ranks.T, one[:count]) for one in (lefts, rights)]
    words = log_words.double().reshape(length * batch, -1)
    single = [best_product(words, one[count:]).view(length, batch, -1) for one in (lefts, rights)]
    check_charts(VITERBI_CHARTS, single[0])
    charts = [words.new_full((begin(length, length + 1), batch, ranks.shape[1]), -torch.inf) for _ in range(3)]
    left, right, inner = charts
    left[:length], right[:length] = single
    for width in range(2, length + 1):
        now = block(length, width)
        for one, other in pairs(length, width):
            inner[now] = torch.maximum(inner[now], left[one] + right[other])
        flat = inner[now].reshape(-1, ranks.shape[1])
        left[now], right[now] = (best_product(flat, step).view_as(inner[now]) for step in steps)
    roots = best_product(root[None, :count], ranks)[0].cpu().numpy()
    back = [one.cpu().numpy() for one in steps]
    arrays = [chart.cpu().numpy() for chart in charts]
    return [traced([a[:, b] for a in arrays], length, n, roots, back) for b, n in enumerate(lengths)]


def traced(charts: list[np.ndarray], total: int, length: int, roots: np.ndarray, steps: list[np.ndarray]) -> Splits:
    """The splits of the best derivation of a sentence, from the top."""
    left, right, inner = charts
    splits: Splits = {}
    waiting = [(0, length, int((roots + inner[begin(total, length)]).argmax()))] if length > 1 else []
    while waiting:
        start, stop, rank = waiting.pop()
        sums = [left[row, rank] + right[other, rank] for row, other in parts(total, start, stop)]
        middle = splits[start, stop] = start + 1 + int(np.argmax(sums))
        for span, step in (((start, middle), steps[0]), ((middle, stop), steps[1])):
            if span[1] - span[0] > 1:
                row = begin(total, span[1] - span[0]) + span[0]
                waiting.append((*span, int((inner[row] + step[:, rank]).argmax())))
    return splits


def parts(total: int, start: int, stop: int) -> list[tuple[int, int]]:
    """The rows of a chart of the left and right part of a span, for every split."""
    middles = range(start + 1, stop)
    return [(begin(total, k - start) + start, begin(total, stop - k) + k) for k in middles]


def best_product(one: Tensor, other: Tensor) -> Tensor:
    """max_k one[i, k] + other[k, j], in pieces."""
    rows = max(1, ENTRIES // max(1, other.numel()))
    return torch.cat([(piece.unsqueeze(-1) + other).amax(1) for piece in one.split(rows)])


class Sampler:
    """Samples trees of a sentence given its words, from the inside chart of the sentence with index `row` in a
    batch."""

    def __init__(self, grammar: Grammar, charts: Charts, words: np.ndarray, row: int) -> None:
        given = (charts.inside, charts.left, charts.right, charts.scales)
        self.inner, self.left, self.right, self.scales = (one[:, row].double().cpu().numpy() for one in given)
        self.total, self.words, self.count = charts.length, words, grammar.nonterminals  # words: p(x | T) [L, P]
        ranks = grammar.ranks_table
        tables = grammar.root, ranks, grammar.lefts, grammar.rights, grammar.left_step, grammar.right_step
        found = (one.detach().double().cpu().numpy() for one in tables)
        self.root, self.ranks, self.lefts, self.rights, self.left_step, self.right_step = found

    def sample(self, length: int, random: np.random.Generator) -> Node:
        """A tree of the first `length` words."""

        def draw(weights: np.ndarray) -> int:
            return drawn(weights.cumsum(), random)

        def child(start: int, stop: int, table: np.ndarray, step: np.ndarray) -> tuple[int, int, Any]:
            """Sample a child from probabilities of symbols [N + P] and, if it has two words or more, of ranks [R]."""
            if stop - start == 1:
                return start, stop, (self.count + draw(table[self.count :] * self.words[start]), -1)
            rank = draw(self.inner[begin(self.total, stop - start) + start] * step)
            return start, stop, (draw(table[: self.count] * self.ranks[:, rank]), rank)

        def expand(start: int, stop: int, state: tuple[int, int]) -> tuple[int, list[Any]]:
            symbol, rank = state
            if rank < 0:
                return symbol, []
            one, other = map(np.array, zip(*parts(self.total, start, stop), strict=True))
            scales = self.scales[one] + self.scales[other]
            weights = np.exp(scales - scales.max()) * self.left[one, rank] * self.right[other, rank]
            middle = start + 1 + draw(weights)
            left = child(start, middle, self.lefts[:, rank], self.left_step[:, rank])
            return symbol, [left, child(middle, stop, self.rights[:, rank], self.right_step[:, rank])]

        roots = self.root[: self.count] @ self.ranks
        return grow(child(0, length, self.root[:-1], roots), expand)
