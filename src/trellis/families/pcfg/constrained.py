"""The sentences of a grammar that satisfy a constraint: the product of grammar and automaton (Bar-Hillel, Perles and
Shamir 1961), by the number of words.

Let g[n, s, s'] [R] be the probability that a node rewritten by rank r derives n words that lead the automaton from
state s to s', and e[s, s'] [P] the probability that a preterminal emits one such word:

    g[n, s, s'] = sum_{k, m} left[k, s, m] * right[n - k, m, s']     left = g G     right = g G'
    left[1, s, s'] = e[s, s'] v_P                                    right[1, s, s'] = e[s, s'] w_P

All numbers are in float64, and every triple (n, s, s') has its own logarithmic scale.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix, identity
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from trellis.errors import TrellisError
from trellis.families.pcfg.generate import draw
from trellis.families.pcfg.grammar import Grammar
from trellis.kernels.inside import finite
from trellis.kernels.lse.tiled import slices

ENTRIES = 1 << 22  # temporary numbers in memory at a time
LARGEST = 1 << 27  # numbers in a chart
WORK = 1 << 34  # pairs of triples, times ranks


class Arcs(NamedTuple):
    """The moves of an automaton with S states from one state to another by one word. Sentences begin in state 0."""

    begins: np.ndarray  # [E]
    ends: np.ndarray  # [E]
    accepting: np.ndarray  # [S]


class Triples:
    """The triples (n, s, s') that can be part of a sentence of at most `most` words, in lexicographic order."""

    def __init__(self, arcs: Arcs, most: int, rank: int) -> None:
        self.size = size = len(arcs.accepting)
        step = csr_matrix((np.ones(len(arcs.begins), bool), arcs[:2]), shape=(size, size))
        before = dijkstra(step, indices=0, unweighted=True)
        accepting = np.flatnonzero(arcs.accepting)
        after = dijkstra(step.T, indices=accepting, unweighted=True, min_only=True)
        found, reached, work = [np.zeros((3, 0), np.int64)], identity(size, bool, "csr"), np.zeros((2, size))
        for n in range(1, most + 1):
            reached = reached @ step
            reached.sort_indices()
            begins, ends = reached.nonzero()
            kept = before[begins] + n + after[ends] <= most
            begins, ends = begins[kept], ends[kept]
            if not len(begins):
                break
            found.append(np.stack([np.full(len(begins), n), begins, ends]))
            reached = csr_matrix((np.ones(len(begins), bool), (begins, ends)), shape=(size, size))
            work += [np.bincount(one, minlength=size) for one in (begins, ends)]
            check_work(rank * work[0].sum(), rank * work[0] @ work[1] / 2)
        self.lengths, self.begins, self.ends = np.concatenate(found, 1)
        self.keys = self.key(self.lengths, self.begins, self.ends)
        self.firsts = np.searchsorted(self.lengths, np.arange(len(found) + 1))  # the first triple of each length
        self.groups = self.lengths * size + self.begins

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, length: np.ndarray | int, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        return (length * self.size + begin) * self.size + end

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The triples with these keys, and whether they exist."""
        rows = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return rows, self.keys[rows] == keys

    def of_length(self, n: int) -> slice:
        return slice(int(self.firsts[n]), int(self.firsts[n + 1]))

    def pairs(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All pairs of triples that join into one of n words, and that triple."""
        left = np.arange(self.firsts[n])
        groups = (n - self.lengths[left]) * self.size + self.ends[left]
        first, last = (np.searchsorted(self.groups, groups, side) for side in ("left", "right"))
        counts = last - first
        left = np.repeat(left, counts)
        right = np.repeat(first - counts.cumsum() + counts, counts) + np.arange(len(left))
        whole, known = self.find(self.key(n, self.begins[left], self.ends[right]))
        return left[known], right[known], whole[known]

    @cached_property
    def by_begin(self) -> list[np.ndarray]:
        """The triples that begin in each state, shortest first."""
        order = np.argsort(self.begins, kind="stable")
        return np.split(order, np.bincount(self.begins, minlength=self.size).cumsum()[:-1])

    def splits(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """All pairs of triples that join into a given triple."""
        n, begin, end = self.lengths[row], self.begins[row], self.ends[row]
        left = self.by_begin[begin]
        left = left[self.lengths[left] < n]
        right, known = self.find(self.key(n - self.lengths[left], self.ends[left], end))
        return left[known], right[known]


def check_work(numbers: float, products: float) -> None:
    if numbers > LARGEST or products > WORK:
        raise TrellisError(
            "The constraint needs a larger chart than a grammar can fill in reasonable time; allow fewer words or "
            "simplify the constraint."
        )


class Leaf(NamedTuple):
    """A word to be emitted by a preterminal, among those that lead the automaton from one state to another."""

    begin: int
    end: int
    preterminal: int
    uniform: float  # a random number that determines the word


class Chart:
    """The values of triples. `words` are the values e of those of one word."""

    def __init__(self, grammar: Grammar, triples: Triples, words: Tensor, accepting: np.ndarray, least: int) -> None:
        self.grammar, self.triples = grammar, triples
        count, rank = len(words), grammar.rank
        self.inner, self.left, self.right = (words.new_zeros(len(triples), rank) for _ in range(3))
        self.scales = words.new_full((len(triples),), -torch.inf)
        self.words, self.scales[:count] = rescaled(words, 0.0)
        self.left[:count], self.right[:count] = self.words @ grammar.left_words, self.words @ grammar.right_words
        for n in range(2, len(triples.firsts) - 1):
            now = triples.of_length(n)
            self.inner[now], self.scales[now] = self.join(n)
            self.left[now] = self.inner[now] @ grammar.left_step
            self.right[now] = self.inner[now] @ grammar.right_step
        whole = (triples.begins == 0) & accepting[triples.ends] & (triples.lengths >= least)
        self.whole = np.flatnonzero(whole)  # sentences
        self.empty = float(grammar.root[-1].log()) if accepting[0] and not least else -np.inf
        self.log_probs = self.sentence_log_probs()  # before division by the mass of finite trees

    def pairs(self, n: int) -> list[Tensor]:
        return [torch.from_numpy(one).to(self.inner.device) for one in self.triples.pairs(n)]

    def join(self, n: int) -> tuple[Tensor, Tensor]:
        """The values of triples of n words and their scales, from those of all pairs that join into them."""
        left, right, target = self.pairs(n)
        now = self.triples.of_length(n)
        weights, target = self.scales[left] + self.scales[right], target - now.start
        found = self.inner.new_zeros(now.stop - now.start, self.inner.shape[1])
        top = found.new_full(found.shape[:1], -torch.inf).scatter_reduce(0, target, weights, "amax")
        factor = (weights - finite(top)[target]).exp().unsqueeze(-1)
        for some in slices(len(left), ENTRIES // found.shape[1]):
            terms = self.left[left[some]].mul_(self.right[right[some]]).mul_(factor[some])
            found.index_add_(0, target[some], terms)
        return rescaled(found, top)

    def sentence_log_probs(self) -> np.ndarray:
        """log p(sentences) for each of `whole`: of this length, in this state at their end."""
        values = self.inner[self.whole] @ self.grammar.root_ranks
        single = self.whole < len(self.words)
        values[single] = self.words[self.whole[single]] @ self.grammar.root_words
        return (values.log() + self.scales[self.whole]).cpu().numpy()

    @property
    def log_prob(self) -> float:
        return float(np.logaddexp.reduce(self.log_probs, initial=self.empty))

    def length_probs(self, most: int) -> np.ndarray:
        """p(number of words) of a sentence that satisfies the constraint: [most + 1]."""
        found = np.bincount(
            self.triples.lengths[self.whole], np.exp(self.log_probs - self.log_prob), minlength=most + 1
        )
        found[0] = np.exp(self.empty - self.log_prob)
        return found / found.sum()

    def outside(self) -> Tensor:
        """The derivatives of log p(constraint) with respect to the values e of triples of one word: [n, P]."""
        outer, left, right = (torch.zeros_like(self.inner) for _ in range(3))
        grammar, count = self.grammar, len(self.words)
        factor = (self.scales[self.whole] - self.log_prob).exp()
        outer[self.whole] = factor.unsqueeze(-1) * grammar.root_ranks
        for n in range(len(self.triples.firsts) - 2, 1, -1):
            now = self.triples.of_length(n)
            outer[now] += left[now] @ grammar.left_step.T + right[now] @ grammar.right_step.T
            one, other, target = self.pairs(n)
            scale = self.scales[one] + self.scales[other] - finite(self.scales[target])
            for some in slices(len(one), ENTRIES // outer.shape[1]):
                above = outer[target[some]].mul_(scale[some].exp().unsqueeze(-1))
                left.index_add_(0, one[some], above * self.right[other[some]])
                right.index_add_(0, other[some], above.mul_(self.left[one[some]]))
        found = left[:count] @ grammar.left_words.T + right[:count] @ grammar.right_words.T
        single = self.whole < count
        found[self.whole[single]] += factor[single].unsqueeze(-1) * grammar.root_words
        return found / finite(self.scales[:count]).exp().unsqueeze(-1)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        given = self.inner, self.left, self.right, self.scales, self.words
        return tuple(one.cpu().numpy() for one in given)

    @cached_property
    def tables(self) -> tuple[np.ndarray, ...]:
        """For a left and a right child: the steps G and G', then v and w of the preterminals; those of the root."""
        grammar = self.grammar
        given = (grammar.left_step, grammar.right_step, grammar.left_words, grammar.right_words, grammar.root_ranks,
                 grammar.root_words)  # fmt: skip
        return tuple(one.cpu().numpy() for one in given)

    def sample(self, random: np.random.Generator) -> list[Leaf]:
        """The preterminals of a sentence, from left to right, and the moves of the automaton."""
        inner, left, right, scales, words = self.arrays
        G, H, left_words, right_words, root_ranks, root_words = self.tables
        chances = np.exp(np.append(self.log_probs, self.empty) - self.log_prob)
        choice, found = draw(chances.cumsum(), random), list[Leaf]()
        if choice == len(self.whole):
            return found
        waiting = [(int(self.whole[choice]), root_ranks, root_words)]
        while waiting:
            row, ranks, symbols = waiting.pop()
            if row < len(words):
                chosen = draw((words[row] * symbols).cumsum(), random)
                move = int(self.triples.begins[row]), int(self.triples.ends[row])
                found.append(Leaf(*move, chosen, random.random()))
                continue
            rank = draw((inner[row] * ranks).cumsum(), random)
            one, other = self.triples.splits(row)
            weights = scales[one] + scales[other]
            weights = np.exp(weights - weights.max()) * left[one, rank] * right[other, rank]
            place = draw(weights.cumsum(), random)
            waiting.append((int(other[place]), H[:, rank], right_words[:, rank]))
            waiting.append((int(one[place]), G[:, rank], left_words[:, rank]))
        return found


def rescaled(values: Tensor, scales: Tensor | float) -> tuple[Tensor, Tensor]:
    """Values [n, R] divided by their maxima [n], and the logarithmic scales of the results."""
    peak = values.amax(-1)
    return values / peak.masked_fill(peak == 0, 1.0).unsqueeze(-1), scales + peak.log()
