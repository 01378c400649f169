"""Low-rank transitions through F latent features, z -> f -> z', as two thin matrices.

    A[z, z'] = phi(u_z) . phi(v_z') / N_z,    N_z = phi(u_z) . sum_z' phi(v_z'),    phi >= 0
             = sum_f p(f | z) p(z' | f),      p(f | z) = phi_f(u_z) S_f / N_z,    p(z' | f) = phi_f(v_z') / S_f,
with S_f = sum_z' phi_f(v_z'). In the second form, nothing overflows and every row sums to one.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from trellis.dirichlet import most_probable
from trellis.kernels.pairs import pair_logits
from trellis.kernels.rows import take, times
from trellis.transitions.alias import Alias, alias_tables
from trellis.transitions.base import Entry, Operator, Summable, invert, invert_rest, select
from trellis.transitions.tiled import Tiled
from trellis.transitions.varying import Blocks, PerStep, TimeVarying
from trellis.types import Groups

DRAWS_PER_FEATURE = 20  # with fewer samples per feature, building alias tables takes longer than it saves


class LowRankEntry(Entry):
    """A = into @ out.T with into = p(f | z) [R, F] and out = p(z' | f) [K, F]. A step costs O((R + K) F).

    `dtype` is the precision of products (bfloat16 on a GPU). They are accumulated in float32."""

    def __init__(self, into: Tensor, out: Tensor, dtype: torch.dtype | None = None) -> None:
        self.into, self.out = into, out
        self.dtype = None if dtype is into.dtype else dtype
        self.num_rows, self.num_states, self.device = into.shape[-2], out.shape[-2], into.device

    @cached_property
    def low(self) -> tuple[Tensor, Tensor] | None:
        """Both factors converted to `dtype`, or None if this is not needed."""
        return None if self.dtype is None else (self.into.detach().to(self.dtype), self.out.detach().to(self.dtype))

    def forward(self, probs: Tensor) -> Tensor:
        return times(self.to_features(probs), self.out.mT, self.low and self.low[1].mT)

    def to_features(self, probs: Tensor) -> Tensor:
        """probs @ into: [..., R] -> [..., F]."""
        return times(probs, self.into, self.low and self.low[0])

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        return take(self.into, before) @ take(self.out, after).mT


class LowRank(LowRankEntry, Tiled, Summable):
    """A low-rank transition between K states. Its statistics [2, K, F] count the expected steps z -> f and f -> z'."""

    aliases: Alias | None = None  # tables of p(z' | f), see `for_draws`

    def backward(self, message: Tensor) -> Tensor:
        hidden = times(message, self.out, self.low and self.low[1])
        return times(hidden, self.into.mT, self.low and self.low[0].mT)

    def between(self, ids: Tensor, groups: Groups | None = None) -> TimeVarying:
        """The transitions between the k live states of adjacent steps: blocks, or if F < k, their low-rank factors.

        A step costs O(min(k^2, k F))."""
        if self.into.shape[-1] < ids.shape[-1]:
            return PerStep(LowRankStep, take(self.into, ids[:, :-1]), take(self.out, ids[:, 1:]))
        if groups is None:
            return super().between(ids)
        return Blocks(pair_logits(groups.arrange(self.into), groups.arrange(self.out), groups.rows, self.dtype))

    @property
    def statistics_shape(self) -> torch.Size:
        return torch.Size((2, *self.into.shape))

    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = left.reshape(-1, self.num_states), right.reshape(-1, self.num_states)
        return torch.stack([self.into * (left.T @ (right @ self.out)), self.out * (right.T @ (left @ self.into))])

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        ratio = pairs / self.blocks(before, after).clamp(min=torch.finfo(pairs.dtype).tiny)
        into = take(self.into, before) * (ratio @ take(self.out, after))
        out = take(self.out, after) * (ratio.mT @ take(self.into, before))
        total = self.into.new_zeros(2, *self.into.shape)
        total[0].index_add_(0, before.flatten(), into.flatten(0, -2))
        total[1].index_add_(0, after.flatten(), out.flatten(0, -2))
        return total

    def row_statistics(self, statistics: Tensor) -> Tensor:
        return statistics[0]

    def maximised(self, statistics: Tensor, pseudocount: float | Tensor = 0.0) -> LowRank:
        into, out = statistics
        into = most_probable(into, pseudocount, self.into)
        return LowRank(into, most_probable(out, pseudocount, self.out, dim=0), self.dtype)

    def rows(self, states: Tensor) -> Tensor:
        return self.into[states] @ self.out.T

    def dense(self) -> Tensor:
        return self.into @ self.out.mT

    def for_draws(self, draws: int) -> LowRank:
        """The same transition, with an alias table of each p(z' | f) if this saves time."""
        if draws < DRAWS_PER_FEATURE * self.out.shape[-1]:
            return self
        prepared = LowRank(self.into, self.out, self.dtype)
        prepared.aliases = alias_tables(self.out.detach().T.contiguous())
        return prepared

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        """Sample f ~ p(f | z), then z' ~ p(z' | f). A sample costs O(F + K), or O(F) with alias tables."""
        feature, rest = invert_rest(select(self.into, states, -2), uniform)
        return invert(select(self.out, feature, -1), rest) if self.aliases is None else self.aliases.draw(feature, rest)

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        """Sample f ~ p(z' | f) sum_z weights(z) p(f | z), then z ~ weights(z) p(f | z)."""
        feature, rest = invert_rest(self.to_features(weights) * select(self.out, states, -2), uniform)
        return invert(weights * select(self.into, feature, -1), rest)


class LowRankStep(Operator):
    """The low-rank transition of one step between k live states, with factors into and out [..., k, F]."""

    def __init__(self, into: Tensor, out: Tensor) -> None:
        self.into, self.out, self.num_states = into, out, out.shape[-2]

    def forward(self, probs: Tensor) -> Tensor:
        return ((probs.unsqueeze(-2) @ self.into) @ self.out.mT).squeeze(-2)

    def backward(self, message: Tensor) -> Tensor:
        return (self.into @ (self.out.mT @ message.unsqueeze(-1))).squeeze(-1)

    def dense(self) -> Tensor:
        return self.into @ self.out.mT


def normalise_features(log_left: Tensor, log_right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p(f | z) [R, F] and p(z' | f) [K, F] from log phi(u_z) and log phi(v_z'), and log N_z [R]."""
    out, log_sums = normalise(log_right, 0)
    into, log_norm = normalise(log_left + log_sums, -1)
    return into, out, log_norm


def normalise(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The softmax and logsumexp of `values` over a dimension. If all values are -inf, the results are 0 and -inf, and
    no gradient flows. torch's own softmax over a leading dimension is slow on a GPU."""
    top = values.detach().amax(dim, keepdim=True)
    weights = (values - top.masked_fill(top == -torch.inf, 0.0)).exp()
    total = weights.sum(dim, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    return weights / total, (total.log() + top).masked_fill(empty, -torch.inf).squeeze(dim)
