"""Transitions by a softmax over products of embeddings, never written out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from trellis.kernels.lse import row_logsumexp
from trellis.kernels.mask import Mask
from trellis.kernels.pairs import pair_logits
from trellis.kernels.rows import take
from trellis.transitions.base import Transition, cached, invert
from trellis.transitions.dense import Dense
from trellis.transitions.unwritten import Unwritten
from trellis.types import Groups


class Softmax(Unwritten):
    """A[z, z'] = exp(q_z . k_z' - n_z), n_z = log sum_z' exp(q_z . k_z'), over the pairs that `mask` keeps.

    The normalisers cost O(K^2 d) once, a block of k live states on each side O(k^2 d); nothing [K, K] is ever kept.
    Queries [R, d] of other states than the keys [K, d] give a rectangular operator, of which only `forward` and
    `blocks` have a meaning. `dtype` is the precision of the products (bfloat16 on a GPU), added up in float32."""

    def __init__(
        self, queries: Tensor, keys: Tensor, mask: Mask | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self.queries, self.keys, self.mask, self.dtype = queries, keys, mask, dtype
        self.num_rows, self.num_states, self.device = len(queries), len(keys), keys.device

    @property
    def log_norm(self) -> Tensor:
        """n_z: [R]."""
        return cached(self, "row_norms", self.normalise_rows, self.queries, self.keys)

    def normalise_rows(self) -> Tensor:
        norms = row_logsumexp(self.queries, self.keys, self.mask, self.dtype)
        return norms if self.mask is None else norms.masked_fill(norms == -torch.inf, 0.0)  # a row without any: zero

    def prepare(self) -> None:
        _ = self.log_norm

    def rows(self, states: Tensor) -> Tensor:
        logits = self.queries[states].to(self.keys.dtype) @ self.keys.T
        return self.kept(logits, states, slice(None)).sub(self.log_norm[states, None]).exp()

    def columns(self, states: Tensor) -> Tensor:
        """A[:, states]: [n] -> [R, n]."""
        logits = self.queries.to(self.keys.dtype) @ self.keys[states].T
        return self.kept(logits, slice(None), states).sub(self.log_norm[:, None]).exp()

    def kept(self, logits: Tensor, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """-inf where the mask says so."""
        return logits if self.mask is None else logits.masked_fill(~self.mask.keeps(rows, columns), -torch.inf)

    def forward(self, probs: Tensor) -> Tensor:
        """p A; rows without mass cost nothing where no gradient is asked for."""
        if must_not_look(probs):
            return sum_of(probs[..., rows] @ tile for rows, tile in self.tiles())
        total = probs.new_zeros(*probs.shape[:-1], self.num_states)
        for states in self.some(probs != 0):
            total += probs[..., states] @ self.rows(states)
        return total

    def backward(self, message: Tensor) -> Tensor:
        """A m; columns that m does not ask for cost nothing where no gradient is asked for."""
        if must_not_look(message):
            return torch.cat([message @ tile.T for _, tile in self.tiles()], -1)
        total = message.new_zeros(*message.shape[:-1], self.num_rows)
        for states in self.some(message != 0):
            total += message[..., states] @ self.columns(states).T
        return total

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        logits = take(self.queries, before).to(self.keys.dtype) @ take(self.keys, after).mT
        return self.kept(logits, before, after).sub(take(self.log_norm, before).unsqueeze(-1)).exp()

    def along(self, ids: Tensor, groups: Groups | None = None) -> Transition:
        if groups is None:
            return super().along(ids)
        logits = pair_logits(groups.arrange(self.queries), groups.arrange(self.keys), groups.rows, self.dtype)
        logits = self.kept(logits, ids[:, :-1], ids[:, 1:])
        return LogBlocks(logits, take(groups.arrange(self.log_norm), groups.rows[:, :-1]))

    def bilinear(self, left: Tensor, right: Tensor) -> Tensor:
        return Dense(self.dense()).bilinear(left, right)

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        return Dense(self.dense()).collect(before, after, pairs)

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        return invert(weights * self.columns(states).T, uniform)


class LogBlocks(Dense):
    """The blocks exp(x - n) [B, T-1, k, k] between live states, kept as logits x and row normalisers n [B, T-1, k]."""

    def __init__(self, logits: Tensor, log_norm: Tensor) -> None:
        self.logits, self.log_norm = logits, log_norm
        self.num_states = logits.shape[-1]

    @property
    def varies(self) -> bool:
        return True

    @cached_property
    def matrix(self) -> Tensor:  # type: ignore[override]
        return (self.logits - self.log_norm.unsqueeze(-1)).exp()


def must_not_look(values: Tensor) -> bool:
    """Whether what is computed must not depend on which values are zero: under gradients and in a CUDA graph."""
    return torch.is_grad_enabled() or (values.is_cuda and torch.cuda.is_current_stream_capturing())


def sum_of(tensors: Iterator[Tensor]) -> Tensor:
    total = next(tensors)
    for tensor in tensors:
        total = total + tensor
    return total
