"""The linear-chain conditional random field over sparse and real-valued features, using the HMM's inference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from trellis.inference import discrete
from trellis.kernels import bags
from trellis.kernels.bags import Bags, Pairs, concatenated_ranges
from trellis.models.restoring import check_indices
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

TOKENS = 1 << 13  # tokens of sentences processed at a time, including padding


class Features(NamedTuple):
    """Features of the N tokens of S sentences, concatenated."""

    ids: Tensor  # [M] int32: the attributes of each token
    offsets: Tensor  # [N + 1] int64: bounds of each token's attributes
    dense: Tensor  # [N, D]: real-valued features
    lengths: Tensor  # [S] int64

    def to(self, device: str | torch.device) -> Features:
        return Features(*(part.to(device) for part in self))

    @property
    def bags(self) -> Bags:
        return Bags(self.ids, self.offsets)

    @property
    def starts(self) -> Tensor:
        """The first token of every sentence: [S]."""
        return self.lengths.cumsum(0) - self.lengths

    def rows(self) -> Tensor:
        """The token indices of every sentence, padded by repeating the last: [S, T]."""
        steps = torch.arange(int(self.lengths.max()), device=self.lengths.device)
        return self.starts[:, None] + torch.minimum(steps, self.lengths[:, None] - 1)

    def take(self, chosen: Tensor) -> tuple[Features, Tensor]:
        """Some of the sentences, and the indices of their tokens."""
        lengths = self.lengths[chosen]
        tokens = concatenated_ranges(self.starts[chosen], lengths)
        sizes = self.offsets.diff()[tokens]
        ids = self.ids[concatenated_ranges(self.offsets[tokens], sizes)]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return Features(ids, offsets, self.dense[tokens], lengths), tokens

    def chunks(self) -> Iterator[tuple[Features, slice]]:
        """Consecutive sentences of about TOKENS tokens when padded, and the range of their tokens."""
        lengths = self.lengths.tolist()
        first = start = 0
        while first < len(lengths):
            last, longest = first, 0
            while last < len(lengths) and (last == first or max(longest, lengths[last]) * (last + 1 - first) <= TOKENS):
                longest, last = max(longest, lengths[last]), last + 1
            end = start + sum(lengths[first:last])
            begin, stop = self.offsets[start], self.offsets[end]
            offsets = self.offsets[start : end + 1] - begin
            yield (
                Features(self.ids[begin:stop], offsets, self.dense[start:end], self.lengths[first:last]),
                slice(start, end),
            )
            first, start = last, end


class CRF(nn.Module):
    """p(y | x) = exp(sum_t s_t(y_t) + sum_t A(y_{t-1}, y_t)) / Z, where s_t = sum_{a in ids_t} W_a + d_t V. Token t has
    the attributes ids_t and the real-valued features d_t; W, V and A are weights.

    W is sparse: only `pairs` of an attribute and a label have a weight (default: all of them). As in crfsuite, there
    are no start or end weights: attributes mark sentence boundaries."""

    first: Tensor
    labels: Tensor

    def __init__(
        self, labels: int, attributes: int, dense: int = 0, dtype: torch.dtype = torch.float32,
        pairs: Pairs | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, values in (pairs or every_pair(attributes, labels))._asdict().items():
            self.register_buffer(name, values)
        self.attribute = nn.Parameter(torch.zeros(len(self.labels), dtype=dtype))
        self.dense = nn.Parameter(torch.zeros(dense, labels, dtype=dtype))
        self.transition = nn.Parameter(torch.zeros(labels, labels, dtype=dtype))

    @property
    def pairs(self) -> Pairs:
        return Pairs(self.first, self.labels)

    @cached_property
    def rows(self) -> bags.Rows:
        return bags.Rows.choose(Pairs(self.first.cpu(), self.labels.cpu()), len(self.transition))

    def scores(self, features: Features) -> Tensor:
        """s_t(y) of every token: [N, L]."""
        scores = bags.score(features.bags, self.pairs, self.rows, self.attribute.detach(), len(self.transition))
        return torch.addmm(scores, features.dense, self.dense.detach()) if self.dense.numel() else scores

    def chain(self, features: Features, scores: Tensor) -> tuple[Belief, Dense, Potentials, Tensor]:
        """The inputs of inference; transitions are scaled by their maximum."""
        sentences, labels = len(features.lengths), len(self.transition)
        matrix = (self.transition - self.transition.max()).detach().exp()
        prior = Belief(scores.new_ones(sentences, labels))
        return prior, Dense(matrix), Potentials(scores, features.rows(), all_observed=True), features.lengths

    def path_scores(self, features: Features, scores: Tensor, gold: Tensor) -> Tensor:
        """The score of the labels `gold` [N] of each sentence, in float64: [S]."""
        chosen = scores.gather(1, gold[:, None])[:, 0].double()
        moves = self.transition.detach()[gold[:-1], gold[1:]].double()
        begins = torch.zeros_like(gold, dtype=torch.bool).index_fill(0, features.starts, True)
        steps = torch.cat([chosen[:1], chosen[1:] + moves.masked_fill(begins[1:], 0.0)])
        sentence = torch.repeat_interleave(features.lengths)
        return chosen.new_zeros(len(features.lengths)).index_add(0, sentence, steps)

    @torch.no_grad()
    def log_likelihood(self, features: Features, gold: Tensor) -> Tensor:
        """log p(y | x) of the labels gold [N], per sentence in float64: [S]."""
        scores = self.scores(features)
        partition = discrete.log_likelihood(*self.chain(features, scores))
        partition += (features.lengths - 1) * self.transition.max().double()
        return self.path_scores(features, scores, gold) - partition

    @torch.no_grad()
    def backward(self, features: Features, gold: Tensor, l2: float = 0.0) -> float:
        """-log p(y | x) + l2 |w|^2, with its gradient in the `grad` of every parameter."""
        sums, dense = bags.new_sums(self.attribute, self.rows), torch.zeros_like(self.dense)
        moves, top = self.gold_moves(features, gold), float(self.transition.max())
        value = float((moves * self.transition).sum())
        for some, where in features.chunks():
            scores, labels = self.scores(some), gold[where, None]
            expected, _ = discrete.counts(*self.chain(some, scores))
            value += float(expected.log_likelihood - scores.gather(1, labels).sum(dtype=torch.float64))
            value += top * (len(labels) - len(some.lengths))
            slopes = expected.emission.scatter_add_(1, labels, -torch.ones_like(scores[:, :1]))
            bags.collect(some.bags, self.pairs, self.rows, slopes, sums)
            dense.addmm_(some.dense.T, slopes)
            moves += expected.transition
        for weight, slope in zip(self.parameters(), (sums.total(self.rows), dense, moves), strict=True):
            weight.grad = slope.to(weight) + 2 * l2 * weight
            value += l2 * float(weight.square().sum(dtype=torch.float64))
        return value

    def gold_moves(self, features: Features, gold: Tensor) -> Tensor:
        """Minus the number of times that label j follows label i: [L, L] float64."""
        inside = torch.ones_like(gold, dtype=torch.bool).index_fill(0, features.starts, False)[1:]
        labels = len(self.transition)
        moves = (gold[:-1] * labels + gold[1:])[inside].bincount(minlength=labels * labels)
        return -moves.view(labels, labels).double()

    @torch.no_grad()
    def best_labels(self, features: Features) -> Tensor:
        """The most probable label sequence of every sentence: [N]."""
        path, _ = discrete.viterbi(*self.chain(features, self.scores(features)))
        return path[path >= 0]

    @torch.no_grad()
    def marginals(self, features: Features) -> Tensor:
        """p(y_t | x): [N, L]."""
        prior, transition, potentials, lengths = self.chain(features, self.scores(features))
        return discrete.smooth(prior, transition, potentials, lengths).probs[potentials.inside(lengths)]


def every_pair(attributes: int, labels: int) -> Pairs:
    """All pairs of an attribute and a label."""
    return Pairs(torch.arange(attributes + 1) * labels, torch.arange(labels, dtype=torch.int32).repeat(attributes))


def check_pairs(pairs: Pairs, attributes: int, labels: int) -> None:
    """Raise ValueError unless these are pairs of an attribute and a label, given the numbers of attributes and
    labels."""
    check_indices("first", pairs.first, (attributes + 1,), 0, len(pairs.labels) + 1)
    check_indices("labels", pairs.labels, (len(pairs.labels),), 0, labels)
    ends = int(pairs.first[0]), int(pairs.first[-1])
    if not labels or ends != (0, len(pairs.labels)) or not bool((pairs.first.diff() >= 0).all()):
        raise ValueError("the weights of the features do not match the labels")


def observed_pairs(features: Features, gold: Tensor, attributes: int, labels: int) -> Pairs:
    """The pairs of an attribute and a label that occur together."""
    seen = torch.zeros(attributes, labels, dtype=torch.bool)
    for some, where in features.chunks():
        seen[some.ids, gold[where].repeat_interleave(some.offsets.diff())] = True
    flat = np.flatnonzero(seen.numpy())
    first = np.searchsorted(flat, np.arange(attributes + 1) * labels)
    return Pairs(torch.from_numpy(first), torch.from_numpy((flat % labels).astype(np.int32)))
