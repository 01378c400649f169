"""The linear-chain conditional random field over sparse and real-valued features, using the HMM's inference."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from trellis.inference import discrete
from trellis.transitions import Dense
from trellis.types import Belief, Potentials


class Inverted(NamedTuple):
    """The tokens of each attribute, as bags."""

    tokens: Tensor  # [M] int64: the tokens that have each attribute
    offsets: Tensor  # [F] int64: start of each attribute's tokens


class Features(NamedTuple):
    """Features of the N tokens of S sentences, concatenated."""

    ids: Tensor  # [M] int64: the attributes of each token
    offsets: Tensor  # [N] int64: start of each token's attributes
    dense: Tensor  # [N, D]: real-valued features
    lengths: Tensor  # [S] int64
    inverted: Inverted | None = None

    def to(self, device: str | torch.device) -> Features:
        ids, offsets, dense, lengths, _ = self
        return Features(ids.to(device), offsets.to(device), dense.to(device), lengths.to(device))

    def invert(self, attributes: int) -> Features:
        """Add an index by attribute, which speeds up training steps on the same text."""
        sizes = torch.diff(self.offsets, append=self.offsets.new_tensor([len(self.ids)]))
        order = self.ids.argsort()
        counts = self.ids.bincount(minlength=attributes)
        tokens = torch.repeat_interleave(sizes)[order]
        return self._replace(inverted=Inverted(tokens, counts.cumsum(0) - counts))

    @property
    def starts(self) -> Tensor:
        """The first token of every sentence: [S]."""
        return self.lengths.cumsum(0) - self.lengths

    def rows(self) -> Tensor:
        """The token indices of every sentence, padded by repeating the last: [S, T]."""
        steps = torch.arange(int(self.lengths.max()), device=self.lengths.device)
        return self.starts[:, None] + torch.minimum(steps, self.lengths[:, None] - 1)


class Bags(torch.autograd.Function):
    """Sums of rows whose gradient is also a sum of rows, without sorting or scattering."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, offsets: Tensor, inverted: Inverted) -> Tensor:
        ctx.inverted = inverted
        return embedding_bag(ids, weight, offsets, mode="sum")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return embedding_bag(ctx.inverted.tokens, grads[0], ctx.inverted.offsets, mode="sum"), None, None, None


class CRF(nn.Module):
    """p(y | x) = exp(sum_t s_t(y_t) + sum_t A(y_{t-1}, y_t)) / Z, with s_t = sum_{a in ids_t} W_a + d_t V.

    As in crfsuite, there are no start or end weights: attributes mark sentence boundaries."""

    def __init__(self, labels: int, attributes: int, dense: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.attribute = nn.Parameter(torch.zeros(attributes, labels, dtype=dtype))
        self.dense = nn.Parameter(torch.zeros(dense, labels, dtype=dtype))
        self.transition = nn.Parameter(torch.zeros(labels, labels, dtype=dtype))

    def scores(self, features: Features) -> Tensor:
        """s_t(y) of every token: [N, L]."""
        ids, offsets, _, _, inverted = features
        if inverted is None:
            scores = embedding_bag(ids, self.attribute, offsets, mode="sum")
        else:
            scores = Bags.apply(self.attribute, ids, offsets, inverted)
        return torch.addmm(scores, features.dense, self.dense) if self.dense.numel() else scores

    def chain(self, features: Features, scores: Tensor) -> tuple[Belief, Dense, Potentials, Tensor]:
        """The inputs of inference; transitions are scaled by their maximum."""
        sentences, labels = len(features.lengths), len(self.transition)
        matrix = (self.transition - self.transition.max().detach()).exp()
        prior = Belief(scores.new_ones(sentences, labels))
        return prior, Dense(matrix), Potentials(scores, features.rows(), all_observed=True), features.lengths

    def log_partition(self, features: Features, scores: Tensor) -> Tensor:
        """log Z of every sentence, in float64: [S]."""
        total = discrete.log_likelihood(*self.chain(features, scores))
        return total + (features.lengths - 1) * self.transition.max().detach().double()

    def log_likelihood(self, features: Features, gold: Tensor) -> Tensor:
        """log p(y | x) of the labels gold [N], per sentence in float64: [S]."""
        scores = self.scores(features)
        chosen = scores.gather(1, gold[:, None])[:, 0].double()
        moves = self.transition[gold[:-1], gold[1:]].double()
        begins = torch.zeros_like(gold, dtype=torch.bool).index_fill(0, features.starts, True)
        steps = torch.cat([chosen[:1], chosen[1:] + moves.masked_fill(begins[1:], 0.0)])
        sentence = torch.repeat_interleave(features.lengths)
        paths = chosen.new_zeros(len(features.lengths)).index_add(0, sentence, steps)
        return paths - self.log_partition(features, scores)

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
