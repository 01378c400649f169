"""Prefix probabilities, left to right (Stolcke 1995), in rank space.

Let S_k [R] be the weight of a right child of rank r that begins at word k, given the words before it, and h [R] the
mass of finite right children. The nodes that begin at k, with the chains of left children above them summed by a linear
solve, have the weights c_k over ranks, and the preterminals the weights f_k:

    c_k = S_k G'^T + (c_k h) G^T           c_0 begins with the root's ranks instead of S_0 G'^T
    f_k = S_k w_P^T + (c_k h) v_P^T        p(x_0 .. x_k ...) = sum_T f_k(T) p(x_k | T)
    S_k = sum_{i < k} c_i * left[i, k]
Here left[i, k] [R] is the inside weight of words i to k - 1 as a left child, G and G' are those of `Grammar`, and v_P
and w_P are its `left_words` and `right_words`. When a node is completed at k, its sibling begins there. The siblings of
the nodes above it are still to come, and each contributes h.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from trellis.devices import check_memory
from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.inside import Charts, Words, inside, log_words, read_words, scaled, sentence_log_probs
from trellis.kernels.inside import begin, finite

COPIES = 3  # of all spans in memory when a word is added


class Closure:
    """The linear maps of a grammar from the weights S of right children to c and f (see the module's docstring)."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar, later = grammar, grammar.finite.right.double()
        chains = torch.eye(grammar.rank, dtype=later.dtype, device=later.device)
        chains = chains - later[:, None] * grammar.left_step.double().T
        begun = torch.cat([grammar.right_step.double().T, grammar.root_ranks.double()[None]])
        solved = torch.linalg.solve(chains.T, begun.T).T.to(grammar.lefts.dtype)
        self.step, self.first = solved[:-1], solved[-1]
        self.later = grammar.finite.right
        self.first_words = grammar.root_words + (self.first * self.later) @ grammar.left_words.T

    def follow(self, expected: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the nodes [..., R] and of the preterminals [..., P] that begin at a word, from those of the
        right children that begin there [..., R]."""
        nodes = expected @ self.step
        return nodes, expected @ self.grammar.right_words.T + (nodes * self.later) @ self.grammar.left_words.T


def weigh(values: Tensor, weights: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """sum exp(weights) * values along `dim`, as values [..., R] of maximum one, and their logarithmic scales [...]."""
    top = finite(weights.amax(dim, keepdim=True)).detach()
    total = (values * (weights - top).exp().unsqueeze(-1)).sum(dim)
    peak = total.detach().amax(-1)
    shown = peak.masked_fill(peak <= 0, 1.0)
    return total / shown.unsqueeze(-1), top.squeeze(dim) + torch.where(peak > 0, shown.log(), -torch.inf)


def prefix_log_probs(closure: Closure, words: Words, charts: Charts, lengths: Tensor) -> Tensor:
    """log p of the sentences that begin with the first k + 1 words, before division by the mass of finite trees, finite
    in the padding: [L, B]."""
    (length, batch), found = words.scales.shape, []
    nodes, scales = [closure.first.expand(batch, -1)], [words.scales.new_zeros(batch)]
    expected = closure.first_words.expand(batch, -1)
    for k in range(length):
        probs = words.expected(expected, k).masked_fill(k >= lengths, 1.0)
        found.append(probs.log() + finite(scales[k] + words.scales[k]))
        rows = torch.tensor([begin(length, k + 1 - i) + i for i in range(k + 1)], device=words.scales.device)
        weights = torch.stack(scales) + charts.scales[rows]
        after, scale = weigh(torch.stack(nodes) * charts.left[rows], weights, 0)
        node, expected = closure.follow(after)
        nodes.append(node)
        scales.append(scale)
    return torch.stack(found)


def token_log_probs(closure: Closure, words: Words, charts: Charts, lengths: Tensor) -> Tensor:
    """log p of every word of whole sentences and of the <eos> after them: [B, L + 1]. Zero in the padding and after a
    word that is impossible."""
    prefixes = pad(prefix_log_probs(closure, words, charts, lengths).T, (1, 0)).double()
    total = closure.grammar.finite.total.log()
    prefixes[:, 0] = total
    ends = sentence_log_probs(closure.grammar, words, charts, lengths).double().unsqueeze(1)
    steps = torch.arange(prefixes.shape[1], device=lengths.device)
    following = pad(prefixes[:, 1:], (0, 1)).where(steps < lengths[:, None], ends)
    undefined = (steps > lengths[:, None]) | (prefixes == -torch.inf)
    return (following - prefixes).masked_fill(undefined, 0.0)


def scored(closure: Closure, words: Tensor, lengths: Tensor) -> Tensor:
    """log p of every word and of the <eos> after them, in float64: [B, L + 1]. Repeated in float64 if not finite."""
    if not words.shape[1]:
        words = words.new_zeros(len(words), 1)
        return scored(closure, words, lengths)[:, :1]
    given = read_words(closure.grammar, words, lengths)
    found = token_log_probs(closure, given, inside(closure.grammar, given, lengths), lengths)
    if closure.grammar.lefts.dtype is not torch.float64 and not bool(found.isfinite().all()):
        return scored(Closure(closure.grammar.double()), words, lengths)
    return found


class Prefix(NamedTuple):
    """The state of B sentences after up to T words. Spans [B, T, T] are indexed by their first and last word.

    Sentences are aligned at their ends: a shorter one begins later, with the scale -inf before it."""

    left: Tensor  # [B, T, T, R]
    left_scales: Tensor  # [B, T, T]
    nodes: Tensor  # [B, T + 1, R]: c at every word and at the next one
    node_scales: Tensor  # [B, T + 1]
    words: Tensor  # [B, P]: f of the next word, in the scale of its nodes
    log_prefix: Tensor  # [B]: log of the total probability of all sentences that begin with these words
    log_whole: Tensor  # [B]: log p of the sentence that consists of these words
    lengths: Tensor  # [B]

    @classmethod
    def begin(cls, closure: Closure, batch: int) -> Prefix:
        grammar = closure.grammar
        like, rank = grammar.lefts.new_zeros, grammar.rank
        nodes, words = (one.expand(batch, *one.shape) for one in (closure.first[None], closure.first_words))
        prefix, whole = (one.double().expand(batch) for one in (grammar.finite.total.log(), grammar.root[-1].log()))
        lengths = torch.zeros(batch, dtype=torch.int64, device=words.device)
        spans = like(batch, 0, 0, rank), like(batch, 0, 0)
        return cls(*spans, nodes, like(batch, 1), words, prefix, whole, lengths)

    def aligned(self, size: int) -> Prefix:
        """The same state with room for T words."""
        more = size - self.left.shape[1]
        if more < 0:  # no sentence has more words: drop what precedes them all
            left, scales = self.left[:, -more:, -more:], self.left_scales[:, -more:, -more:]
            return self._replace(
                left=left, left_scales=scales, nodes=self.nodes[:, -more:], node_scales=self.node_scales[:, -more:]
            )
        return self._replace(
            left=pad(self.left, (0, 0, more, 0, more, 0)),
            left_scales=pad(self.left_scales, (more, 0, more, 0), value=-torch.inf),
            nodes=pad(self.nodes, (0, 0, more, 0)),
            node_scales=pad(self.node_scales, (more, 0), value=-torch.inf),
        )

    def where(self, mask: Tensor, other: Prefix) -> Prefix:
        """The state of B sentences: from this state where the mask [B] is true, from `other` elsewhere."""
        lengths = torch.where(mask, self.lengths, other.lengths)
        size = max(int(lengths.max()), 0) if len(lengths) else 0
        both = zip(self.aligned(size), other.aligned(size), strict=True)
        return Prefix(*(torch.where(mask.view(-1, *[1] * (one.dim() - 1)), one, two) for one, two in both))

    def rows(self, count: int) -> Prefix:
        """The state of the first `count` sentences."""
        return Prefix(*(value[:count] for value in self))

    def forecast(self, grammar: Grammar, eos: int) -> Tensor:
        """log p of the next word, or of <eos>: [B, V]."""
        scale = self.node_scales[:, -1].double() - self.log_prefix
        found = grammar.emission.predict(self.words) + scale.unsqueeze(1)
        found[:, eos] = self.log_whole - self.log_prefix
        return found.to(self.left.dtype)

    def extend(self, closure: Closure, tokens: Tensor) -> Prefix:
        """The state after one more word of each sentence [B]."""
        grammar = closure.grammar
        check_spans(self.left)
        word = scaled(log_words(grammar, tokens)[None], torch.ones_like(tokens))
        probs, scale = word.probs[0], word.scales[0]
        log_prefix = (self.words * probs).sum(-1).log() + self.node_scales[:, -1] + finite(scale)
        insides, lefts, scales = column(self, grammar, probs, scale)
        spans, span_scales = torch.stack(lefts, 1), torch.stack(scales, 1)
        expected, after = weigh(self.nodes * spans, self.node_scales + span_scales, 1)
        nodes, words = closure.follow(expected)
        size, lengths = len(lefts), self.lengths + 1
        first = (size - lengths)[:, None]
        whole = torch.stack(insides, 1).gather(1, first.unsqueeze(-1).expand(-1, 1, grammar.rank))[:, 0]
        value = torch.where(lengths == 1, probs @ grammar.root_words, whole @ grammar.root_ranks)
        log_whole = value.log() + span_scales.gather(1, first)[:, 0]
        return Prefix(
            torch.cat([pad(self.left, (0, 0, 0, 0, 0, 1)), spans.unsqueeze(2)], 2),
            torch.cat([pad(self.left_scales, (0, 0, 0, 1), value=-torch.inf), span_scales.unsqueeze(2)], 2),
            torch.cat([self.nodes, nodes.unsqueeze(1)], 1),
            torch.cat([self.node_scales, after.unsqueeze(1)], 1),
            words,
            log_prefix.double(),
            log_whole.double(),
            lengths,
        )


def check_spans(left: Tensor) -> None:
    """Raise if the spans of one more word than in `left` [B, T, T, R] need more memory than there is."""
    batch, length, _, rank = left.shape
    if left.device.type == "cpu":
        what = f"A table of the spans of {batch:,} sentences of {length + 1:,} words"
        size = COPIES * batch * (length + 1) ** 2 * rank * left.element_size()
        check_memory(size, what, "use shorter sentences, or fewer at a time")


def column(state: Prefix, grammar: Grammar, probs: Tensor, scale: Tensor) -> Any:
    """The spans that end with a new word, widest first: lists of their inside weights [B, R], of their weights as left
    children [B, R], and of their logarithmic scales [B]."""
    insides, lefts = [torch.zeros_like(probs @ grammar.left_words)], [probs @ grammar.left_words]
    rights, scales = [probs @ grammar.right_words], [scale]
    for start in range(state.left.shape[1] - 1, -1, -1):
        weights = state.left_scales[:, start, start:] + torch.stack(scales, 1)
        g, found = weigh(state.left[:, start, start:] * torch.stack(rights, 1), weights, 1)
        for values, value in ((insides, g), (lefts, g @ grammar.left_step), (rights, g @ grammar.right_step)):
            values.insert(0, value)
        scales.insert(0, found)
    return insides, lefts, scales
