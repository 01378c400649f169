"""A context-free grammar with low-rank rule probabilities, and the total probability of its finite trees.

    p(B C | A) = sum_r u_Ar v_Br w_Cr          p(x | T)          p(root)
Nonterminals A rewrite to two symbols, each a nonterminal or a preterminal T, which emits a word. `ranks` [N, R] is u,
with rows that sum to one; `lefts` and `rights` [N + P, R] are v and w, with columns that sum to one. In a simple
grammar u is the identity: the children are independent given A. The root of a sentence is a nonterminal, a preterminal
(a sentence of one word) or nothing (the empty sentence): probabilities [N + P + 1].

Most of inference is in rank space. g_r is the inside value of a span whose topmost rule has rank r. The inside values
of its symbols, u g, are never needed: as a left child in a rule of rank r, the span has the value (g G)_r with G = u'
v.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from trellis.emissions import Categorical

TIGHT = 1e-6  # if finite trees have a probability below one minus this, it is divided out
POWERS, NEWTON = 200, 100  # iterations at most
CONVERGED = 1e-14


class Grammar:
    """Probabilities of N nonterminals, P preterminals, rank R and V words."""

    def __init__(
        self, root: Tensor, ranks: Tensor | None, lefts: Tensor, rights: Tensor, emission: Categorical
    ) -> None:
        self.root, self.ranks, self.lefts, self.rights = root, ranks, lefts, rights
        self.emission = emission  # log p(x | T), -inf for <eos>
        self.preterminals = emission.num_states
        self.nonterminals = len(lefts) - self.preterminals

    def double(self) -> Grammar:
        """The same grammar in float64."""
        ranks = None if self.ranks is None else self.ranks.double()
        emission = self.emission.with_table(self.emission.table.double())
        return type(self)(self.root.double(), ranks, self.lefts.double(), self.rights.double(), emission)

    @property
    def rank(self) -> int:
        return self.lefts.shape[1]

    @property
    def ranks_table(self) -> Tensor:
        """u [N, R]; the identity for a simple grammar."""
        identity = torch.eye(self.rank, dtype=self.lefts.dtype, device=self.lefts.device)
        return identity if self.ranks is None else self.ranks

    def to_ranks(self, weights: Tensor) -> Tensor:
        """Weights of ranks from those of nonterminals: [..., N] -> [..., R]."""
        return weights if self.ranks is None else weights @ self.ranks

    @cached_property
    def left_step(self) -> Tensor:
        """G[r, s] = sum_A u_Ar v_As: a nonterminal rewritten by rank r, as the left child of rank s."""
        return self.to_ranks(self.lefts[: self.nonterminals].T).T

    @cached_property
    def right_step(self) -> Tensor:
        """G'[r, s] = sum_A u_Ar w_As: a nonterminal rewritten by rank r, as the right child of rank s."""
        return self.to_ranks(self.rights[: self.nonterminals].T).T

    @cached_property
    def root_ranks(self) -> Tensor:
        """The probability that the root is a nonterminal, rewritten by rank r: [R]."""
        return self.to_ranks(self.root[: self.nonterminals])

    @property
    def root_words(self) -> Tensor:
        """The probability that the root is preterminal T: [P]."""
        return self.root[self.nonterminals : -1]

    @property
    def left_words(self) -> Tensor:
        """v of the preterminals: [P, R]."""
        return self.lefts[self.nonterminals :]

    @property
    def right_words(self) -> Tensor:
        return self.rights[self.nonterminals :]

    def log_words(self, preterminal: int) -> Tensor:
        """log p(x | T) of every word x under one preterminal T: [V]."""
        return self.emission.columns(torch.tensor([preterminal], device=self.lefts.device))[:, 0]

    @cached_property
    def finite(self) -> Finite:
        """The mass of finite trees."""
        return Finite(self)


class Finite:
    """The probability that a tree is finite: `inner` [R] for a node rewritten by rank r, `symbols` [N] for a
    nonterminal, `right` [R] for a right child in a rule of rank r, and `total` for a sentence. One if the grammar is
    tight.

    With g_r for a node rewritten by rank r, l = v_P 1 + g G and h = w_P 1 + g G', the smallest solution of g = l h is
    found by Newton's method from zero, in float64. Its last step is differentiable, which gives the implicit gradient.
    """

    def __init__(self, grammar: Grammar) -> None:
        left, right = grammar.left_step.double(), grammar.right_step.double()
        words = grammar.left_words.sum(0).double(), grammar.right_words.sum(0).double()
        if is_tight(left.detach() + right.detach()):
            inner = torch.ones_like(words[0])
        else:
            inner = solve_mass(left, right, *words)
        self.inner, self.right = (one.to(grammar.lefts.dtype) for one in (inner, words[1] + inner @ right))
        self.symbols = self.inner if grammar.ranks is None else grammar.ranks @ self.inner
        known = grammar.root_words.sum() + grammar.root[-1]
        mass = (grammar.root_ranks.double() * inner).sum() + known.double()
        self.total = torch.where(mass < 1 - TIGHT, mass, torch.ones_like(mass))


def is_tight(children: Tensor) -> bool:
    """Whether every tree is finite: the spectral radius of the expected children M [R, R] is at most one.

    The power method looks for a positive x with x M <= x, which proves it."""
    x = torch.ones_like(children[0])
    for _ in range(POWERS):
        after = x @ children
        ratio, largest = after / x, after.max()
        most, least, size = torch.stack([ratio.max(), ratio.min(), largest]).tolist()  # one wait for the device
        if most <= 1:
            return True
        if least > 1 or not size > 0:
            return False
        x = after / largest + CONVERGED
    return False


def solve_mass(left: Tensor, right: Tensor, left_words: Tensor, right_words: Tensor) -> Tensor:
    """The smallest solution g [R] of g = (a + g G)(b + g G'), where G, G', a and b are the arguments, in this order."""

    def newton(inner: Tensor, given: tuple[Tensor, ...]) -> Tensor:
        G, H, a, b = given
        one, other = a + inner @ G, b + inner @ H
        slope = (torch.eye(len(a), dtype=a.dtype, device=a.device) - (G * other + H * one)).detach()
        return inner + torch.linalg.solve(slope.T, one * other - inner)

    given = left, right, left_words, right_words
    inner, fixed = torch.zeros_like(left_words).detach(), tuple(one.detach() for one in given)
    for _ in range(NEWTON):
        after = newton(inner, fixed).clamp(0, 1)
        change, inner = float((after - inner).abs().max()), torch.maximum(after, inner)
        if change < CONVERGED:
            break
    return newton(inner, given)
