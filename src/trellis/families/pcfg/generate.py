"""Random sentences: symbols are rewritten from left to right, given that the tree is finite."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trellis.families.pcfg.grammar import Grammar


class Generator:
    """Cumulative probabilities of a grammar's choices, given that each symbol's tree is finite."""

    def __init__(self, grammar: Grammar) -> None:
        self.count, finite = grammar.nonterminals, grammar.finite
        symbols = torch.cat([finite.symbols, torch.ones_like(grammar.root_words)])
        ranks = grammar.ranks_table
        self.ranks = cumulated(ranks * finite.inner)  # [N, R]
        self.lefts, self.rights = (cumulated((one * symbols[:, None]).T) for one in (grammar.lefts, grammar.rights))
        self.root = cumulated(grammar.root * torch.cat([symbols, torch.ones_like(symbols[:1])]))
        self.grammar = grammar

    def sample(self, n: int, most: int, eos: int, random: np.random.Generator) -> Tensor:
        """The tokens of n sentences, [n, T]: each ends at its first <eos>, or after `most` tokens."""
        found = [self.preterminals(most, random) for _ in range(n)]
        longest = min(most, 1 + max(map(len, found)))
        flat = np.concatenate([*found, np.zeros(0, np.int64)]).astype(np.int64)
        words = iter(np.split(self.emitted(flat, random), np.cumsum([len(one) for one in found])[:-1]))
        tokens = np.full((n, longest), eos)
        for row, one in zip(tokens, words, strict=True):
            row[: len(one)] = one
        return torch.from_numpy(tokens)

    def preterminals(self, most: int, random: np.random.Generator) -> list[int]:
        """The preterminals of a sentence, the first `most` of them."""
        found: list[int] = []
        waiting = [draw(self.root, random)]
        while waiting and len(found) < most:
            symbol = waiting.pop()
            if symbol < self.count:
                rank = draw(self.ranks[symbol], random)
                waiting += [draw(self.rights[rank], random), draw(self.lefts[rank], random)]
            elif symbol < self.count + self.grammar.preterminals:  # otherwise, the empty sentence
                found.append(symbol - self.count)
        return found

    def emitted(self, preterminals: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """A word for each preterminal."""
        uniform, words = random.random(len(preterminals)), np.zeros(len(preterminals), np.int64)
        for symbol in np.unique(preterminals):
            here, sums = preterminals == symbol, cumulated(self.grammar.log_words(int(symbol)).exp())
            words[here] = np.searchsorted(sums, uniform[here] * sums[-1], side="right").clip(max=len(sums) - 1)
        return words


def cumulated(weights: Tensor) -> np.ndarray:
    """Cumulative sums along the last axis, in float64."""
    return weights.detach().double().cumsum(-1).cpu().numpy()


def draw(sums: np.ndarray, random: np.random.Generator) -> int:
    """An index with these cumulative weights."""
    return int(np.searchsorted(sums, random.random() * sums[-1], side="right").clip(max=len(sums) - 1))
