"""The inside pass in rank space and its adjoint, the outside pass: O(L^3 R + L^2 R^2) per sentence.

    g[i, j] = sum_k left[i, k] * right[k, j]       left[i, j] = g[i, j] G       right[i, j] = g[i, j] G'
Charts are scaled per span (`trellis.kernels.inside`), so that long sentences do not underflow. The adjoint of log p
gives the gradient, the probabilities of spans and, times the parameters, the expected counts of rules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from trellis.devices import check_memory
from trellis.families.pcfg.config import CHARTS
from trellis.families.pcfg.grammar import Grammar
from trellis.kernels import inside as passes
from trellis.kernels.inside import begin, block, finite
from trellis.kernels.rows import take

GAP = -1  # the id of a missing word


class Words(NamedTuple):
    """The values exp(scales) * probs of preterminals for the words of sentences, zero in the padding."""

    probs: Tensor  # [L, B, k]
    scales: Tensor  # [L, B]; constants
    ids: Tensor | None = None  # [L, B, k]: the preterminals that can emit each word; None: all, k = P

    def through(self, table: Tensor) -> Tensor:
        """sum_T probs[T] table[T]: [P, R] -> [L, B, R]."""
        if self.ids is None:
            return self.probs @ table
        ids, probs = self.ids.flatten(0, 1), self.probs.flatten(0, 1)
        return embedding_bag(ids, table, per_sample_weights=probs, mode="sum").view(*self.scales.shape, -1)

    def expected(self, weights: Tensor, step: int) -> Tensor:
        """sum_T probs[T] weights[T] of the words at a step: [B, P] -> [B]."""
        own = weights if self.ids is None else weights.gather(1, self.ids[step])
        return (own * self.probs[step]).sum(-1)


class Charts(NamedTuple):
    """The spans of B sentences; see `trellis.kernels.inside`. Only `whole` and `left` have gradients."""

    whole: Tensor  # [B, R]: g of whole sentences, in the scale of their spans; any for those of fewer than two words
    left: Tensor  # [S, B, R]
    right: Tensor  # [S, B, R]
    inside: Tensor  # g [S, B, R]; zero for single words
    scales: Tensor  # [S, B]; constants
    length: int


def read_words(grammar: Grammar, tokens: Tensor, lengths: Tensor) -> Words:
    """The preterminals of sentences [B, L]."""
    if not grammar.emission.has_support or bool((tokens == GAP).any()):
        return scaled(log_words(grammar, tokens.T), lengths)
    given = grammar.emission.potentials(tokens.T, all_observed=True)
    return scaled(take(given.table, given.rows), lengths)._replace(ids=given.ids)


def log_words(grammar: Grammar, tokens: Tensor) -> Tensor:
    """log p(x | T) of words of any shape: [..., P]. A gap may be any word."""
    given = grammar.emission.potentials(tokens)
    found = take(given.table, tokens.clamp(min=0))
    if given.ids is not None:
        found = found.new_full((*tokens.shape, grammar.preterminals), -torch.inf).scatter(-1, given.ids, found)
    return found.masked_fill((tokens == GAP).unsqueeze(-1), 0.0)


def scaled(log_probs: Tensor, lengths: Tensor) -> Words:
    """log p(x | T) [L, B, k] as probabilities with a maximum of one, and their scales."""
    outside = torch.arange(len(log_probs), device=lengths.device)[:, None] >= lengths
    scales = log_probs.detach().amax(-1).masked_fill(outside, -torch.inf)
    probs = (log_probs - finite(scales).unsqueeze(-1)).exp()
    return Words(probs.masked_fill((scales == -torch.inf).unsqueeze(-1), 0.0), scales)


def inside(grammar: Grammar, words: Words, lengths: Tensor, spans: Tensor | None = None) -> Charts:
    """The charts of sentences. `spans` [S, B] are zeros; the gradient of log p with respect to them is p(span |
    words)."""
    length = len(words.scales)
    left, right = words.through(grammar.left_words), words.through(grammar.right_words)
    check_charts(CHARTS, left)
    rows = whole_rows(length, lengths)
    found = Inside.apply(left, right, words.scales, grammar.left_step, grammar.right_step, rows, spans)
    return Charts._make((*found, length))


def check_charts(count: int, single: Tensor) -> None:
    """Raise if charts need more memory than there is; `single` [L, B, R] has the values of single words."""
    length, batch, rank = single.shape
    if single.device.type == "cpu":
        what = f"A chart of {batch:,} sentences of {length:,} words"
        size = count * begin(length, length + 1) * batch * rank * single.element_size()
        check_memory(size, what, "use shorter sentences, or fewer at a time")


def whole_rows(length: int, lengths: Tensor) -> Tensor:
    """The row of each whole sentence in its chart: [B]."""
    widths = lengths.clamp(min=1)
    return (widths - 1) * (2 * length - widths + 2) // 2


class Inside(torch.autograd.Function):
    """Charts from those of single words, left and right [L, B, R], and the steps G and G' [R, R]; `rows` [B] are those
    of whole sentences."""

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, scales: Tensor, G: Tensor, H: Tensor, rows: Tensor, spans: Any
    ) -> Any:
        length, batch, rank = left.shape
        count = begin(length, length + 1)
        g, lefts, rights = (left.new_empty(count, batch, rank) for _ in range(3))
        g[:length], lefts[:length], rights[:length] = 0, left, right
        all_scales = scales.new_full((count, batch), -torch.inf)
        all_scales[:length] = scales
        for width in range(2, length + 1):
            passes.join(lefts, rights, all_scales, g, length, width)
            now, left, right = (chart[block(length, width)].view(-1, rank) for chart in (g, lefts, rights))
            torch.mm(now, G, out=left)
            torch.mm(now, H, out=right)
        ctx.save_for_backward(g, lefts, rights, all_scales, G, H, rows)
        ctx.length = length
        ctx.mark_non_differentiable(rights, g, all_scales)
        ctx.set_materialize_grads(False)
        return g.gather(0, rows[None, :, None].expand(1, -1, rank))[0], lefts, rights, g, all_scales

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, whole_adjoint: Any, left_adjoint: Any, *_: Any) -> Any:
        """The outside pass, from wide spans to single words."""
        g, lefts, rights, scales, G, H, rows = ctx.saved_tensors
        length, rank = ctx.length, g.shape[-1]
        left = torch.zeros_like(g) if left_adjoint is None else left_adjoint.contiguous().clone()
        outer, right = torch.zeros_like(g), torch.zeros_like(g)
        if whole_adjoint is not None:
            outer.scatter_(0, rows[None, :, None].expand(1, -1, rank), whole_adjoint[None])
        for width in range(length, 0, -1):
            passes.spread(lefts, rights, scales, outer, left, right, length, width)
            if width > 1:
                now, as_left, as_right = (chart[block(length, width)].view(-1, rank) for chart in (outer, left, right))
                now.addmm_(as_left, G.T).addmm_(as_right, H.T)
        wide = g[length:].reshape(-1, rank).T
        steps = (wide @ one[length:].reshape(-1, rank) for one in (left, right))
        spans = (outer * g).sum(-1) if ctx.needs_input_grad[6] else None
        return left[:length], right[:length], None, *steps, None, spans


def sentence_log_probs(grammar: Grammar, words: Words, charts: Charts, lengths: Tensor) -> Tensor:
    """log p of whole sentences, before division by the mass of finite trees: [B]."""
    scales = charts.scales.gather(0, whole_rows(charts.length, lengths)[None])[0]
    single = words.expected(grammar.root_words.expand(len(lengths), -1), 0)
    probs = torch.where(lengths == 1, single, charts.whole @ grammar.root_ranks)
    empty = lengths == 0
    return torch.where(empty, grammar.root[-1], probs).log() + scales.masked_fill(empty, 0.0)


def lower_bounds(grammar: Grammar, tokens: Tensor, lengths: Tensor) -> Tensor:
    """log p of whole sentences [B, L] without <eos>, before division by the mass of finite trees, in float64: [B]. A
    lower bound, and exact if the grammar is tight; on a GPU, nothing here waits for the device if every preterminal can
    emit every word."""
    words = read_words(grammar, tokens, lengths)
    return sentence_log_probs(grammar, words, inside(grammar, words, lengths), lengths).double()


def log_likelihoods(grammar: Grammar, tokens: Tensor, lengths: Tensor) -> Tensor:
    """log p of whole sentences [B, L] without <eos>, in float64: [B]. Repeated in float64 if it is not finite."""
    found = lower_bounds(grammar, tokens, lengths)
    if grammar.lefts.dtype is not torch.float64 and tokens.device.type == "cpu" and not bool(found.isfinite().all()):
        return log_likelihoods(grammar.double(), tokens, lengths)
    return found - grammar.finite.total.log()
