"""Posteriors and expected counts under a grammar, all of them gradients of log p; and the words of gaps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.inside import (
    GAP,
    Charts,
    Words,
    inside,
    log_likelihoods,
    log_words,
    scaled,
    sentence_log_probs,
)
from trellis.families.pcfg.prefix import Closure, prefix_log_probs
from trellis.kernels.inside import begin
from trellis.transitions.base import invert
from trellis.types import Counts


class Posterior(NamedTuple):
    """The distribution over the trees of B sentences of up to L words."""

    log_probs: Tensor  # [B], in float64
    words: Tensor  # [B, L, P]: p(preterminal of a word | sentence), zero in the padding
    spans: Tensor  # [S, B]: p(span is a constituent | sentence); zero for single words
    charts: Charts


@torch.no_grad()
def posterior(grammar: Grammar, tokens: Tensor, lengths: Tensor, closure: Closure | None = None) -> Posterior:
    """Posteriors of sentences [B, L] without <eos>. With a closure, the sentences may continue."""
    batch, length = tokens.shape
    leaf = log_words(grammar, tokens.T)
    spans = leaf.new_zeros(begin(length, length + 1), batch)
    with torch.enable_grad():
        words = scaled(leaf.requires_grad_(), lengths)
        charts = inside(grammar, words, lengths, spans.requires_grad_())
        log_probs = (
            sentence_log_probs(grammar, words, charts, lengths)
            if closure is None
            else continued(closure, words, charts, lengths)
        )
        given = torch.autograd.grad(log_probs.sum(), [leaf, spans], materialize_grads=True)
    if grammar.lefts.dtype is not torch.float64 and not bool(log_probs.isfinite().all()):
        return posterior(grammar.double(), tokens, lengths, closure and Closure(grammar.double()))
    inside_sentence = torch.arange(length, device=tokens.device)[:, None] < lengths
    known = given[0].nan_to_num(0.0) * inside_sentence.unsqueeze(-1)
    log_probs = log_probs.detach().double() - grammar.finite.total.log()
    return Posterior(log_probs, known.transpose(0, 1), given[1].nan_to_num(0.0), detached(charts))


def detached(charts: Charts) -> Charts:
    return Charts._make(one.detach() if isinstance(one, Tensor) else one for one in charts)


def continued(closure: Closure, words: Words, charts: Charts, lengths: Tensor) -> Tensor:
    """log p of the sentences that begin with these words, at least one: [B]."""
    return prefix_log_probs(closure, words, charts, lengths).gather(0, (lengths - 1).clamp(min=0)[None])[0]


@torch.no_grad()
def expected_counts(grammar: Grammar, tokens: Tensor, lengths: Tensor) -> Counts:
    """Expected numbers of roots [N + P + 1], of u, v and w, concatenated, and of words [V, k]: probabilities times the
    gradients of the log-likelihood."""
    given = [grammar.root, grammar.ranks, grammar.lefts, grammar.rights, grammar.emission.table]
    leaves = [None if one is None else one.detach().requires_grad_() for one in given]
    *rules, table = leaves
    with torch.enable_grad():
        tight = Tight(*rules, grammar.emission.with_table(table))  # type: ignore[arg-type, call-arg]
        log_likelihood = log_likelihoods(tight, tokens, lengths).sum()
        used = [leaf for leaf in leaves if leaf is not None]
        slopes = torch.autograd.grad(log_likelihood, used, materialize_grads=True)
    root, *counts = (leaf.detach() * slope for leaf, slope in zip(used[:-1], slopes[:-1], strict=True))
    mass = grammar.finite.total.log() * len(tokens)
    return Counts(log_likelihood.detach() - mass, root, torch.cat([one.flatten() for one in counts]), slopes[-1])


class Tight(Grammar):
    """A grammar whose infinite trees are ignored: EM removes them by itself (Chi and Geman 1998)."""

    @property
    def finite(self) -> _Everything:  # type: ignore[override]
        return _Everything()


class _Everything:
    total = torch.ones((), dtype=torch.float64)


class Gaps(NamedTuple):
    """Sentences whose gaps are to be filled. With a closure, the sentences may continue after their last word."""

    grammar: Grammar
    closure: Closure | None

    def distribution(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """p(word | all observed words) at every gap, [B, L, V] (zero elsewhere), and log p of the sentences [B]."""
        found = posterior(self.grammar, tokens, lengths, self.closure)
        given = found.words * (tokens == GAP).unsqueeze(-1)
        return self.grammar.emission.predict(given.to(self.grammar.lefts.dtype)).exp(), found.log_probs

    def log_probs(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """log p of the sentences: [B]."""
        return posterior(self.grammar, tokens, lengths, self.closure).log_probs

    def sample(self, tokens: Tensor, lengths: Tensor, uniform: Tensor) -> Tensor:
        """Fill the gaps from left to right, each from its distribution given the words so far: a joint sample.
        `uniform` [B, L] has a random number for each."""
        filled = tokens.clone()
        for t in self.places(tokens):
            given, _ = self.distribution(filled, lengths)
            drawn = invert(given[:, t].double(), uniform[:, t])
            filled[:, t] = torch.where(filled[:, t] == GAP, drawn, filled[:, t])
        return filled

    def best(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Fill the gaps with probable words, by a local search.

        The gaps are filled from left to right. Then single words are replaced as long as this raises the probability.
        With one gap, the result is the most probable word."""
        filled, places = tokens.clone(), self.places(tokens)
        for _ in range(1 + len(places) * 8):
            before = filled.clone()
            for t in places:
                gap = (tokens[:, t] == GAP) & (t < lengths)
                filled[:, t] = filled[:, t].masked_fill(gap, GAP)
                given, _ = self.distribution(filled, lengths)
                filled[:, t] = torch.where(gap, given[:, t].argmax(-1), filled[:, t])
            if len(places) == 1 or bool((before == filled).all()):
                break
        return filled

    def places(self, tokens: Tensor) -> list[int]:
        return (tokens == GAP).any(0).nonzero().flatten().tolist()
