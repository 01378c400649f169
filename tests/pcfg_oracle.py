"""Brute force for grammars: every binary tree over a sentence, with every label and rank, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from trellis.emissions import Categorical, Partition
from trellis.families.hmm.parameters.base import normalised
from trellis.families.pcfg.grammar import Grammar


def random_grammar(
    N: int, P: int, R: int | None, V: int, seed: int = 0, spread: float = 1.0, partition: Partition | None = None
) -> Grammar:
    """A random grammar over V words, the first of which is <eos>; R None: a simple one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, dim: int = -1) -> torch.Tensor:
        return (spread * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(dim)

    ranks = None if R is None else draw(N, R)
    words = draw(V, partition.live if partition else P, dim=0).log()
    words[0] = -torch.inf
    emission: Categorical = normalised(words, partition, P)
    rank = N if R is None else R
    return Grammar(draw(N + P + 1), ranks, draw(N + P, rank, dim=0), draw(N + P, rank, dim=0), emission)


class Node(NamedTuple):
    """A constituent: symbols from N on are preterminals, and have no rank and no children."""

    start: int
    stop: int
    symbol: int
    rank: int = -1
    children: tuple[Node, ...] = ()

    def nodes(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.nodes()


class Oracle:
    """All derivations of short sentences."""

    def __init__(self, grammar: Grammar) -> None:
        self.N, self.P = grammar.nonterminals, grammar.preterminals
        self.u = np.eye(self.N) if grammar.ranks is None else grammar.ranks.numpy()
        self.v, self.w, self.root = grammar.lefts.numpy(), grammar.rights.numpy(), grammar.root.numpy()
        self.words = grammar.emission.dense().exp().numpy()

    def derivations(self, sentence: tuple[int, ...]) -> list[tuple[Node, float]]:
        """Every derivation with its probability, the root's included; a word of -1 may be any."""

        @cache
        def under(start: int, stop: int, symbol: int) -> list[tuple[Node, float]]:
            if symbol >= self.N:
                if stop - start > 1:
                    return []
                word = sentence[start]
                return [(Node(start, stop, symbol), 1.0 if word < 0 else self.words[word, symbol - self.N])]
            found = []
            for middle, rank in product(range(start + 1, stop), range(self.u.shape[1])):
                for B, C in product(range(self.N + self.P), repeat=2):
                    rule = self.u[symbol, rank] * self.v[B, rank] * self.w[C, rank]
                    for (one, p), (other, q) in product(under(start, middle, B), under(middle, stop, C)):
                        found.append((Node(start, stop, symbol, rank, (one, other)), rule * p * q))
            return found

        every = range(self.N + self.P)
        return [(node, p * self.root[A]) for A in every for node, p in under(0, len(sentence), A)]

    def prob(self, sentence: tuple[int, ...]) -> float:
        return math.fsum(p for _, p in self.derivations(sentence)) if sentence else float(self.root[-1])
