"""Transitions given by a softmax over products of embeddings. Only small transition matrices are formed."""

from functools import cached_property

import torch
from torch import Tensor

from trellis.kernels.lse import row_logsumexp, row_softmax
from trellis.kernels.mask import Mask
from trellis.kernels.optional import installed
from trellis.kernels.pairs import block_probabilities
from trellis.kernels.rows import take
from trellis.transitions.base import Entry, Samplable, Transition, invert
from trellis.transitions.pieces import block, moved, pulled
from trellis.transitions.stripes import in_stripes
from trellis.transitions.tiled import Tiled, add, written_out
from trellis.transitions.varying import ClassBlocks, LogitBlocks, SetBlocks, TimeVarying
from trellis.types import Groups

LARGEST_MATRIX = 8192  # up to this many states, training on a CPU forms the matrix: 256 MiB in float32


class SoftmaxEntry(Tiled, Entry):
    """A[i, z'] = exp(q_i . k_z' - n_i) with n_i = log sum_z' exp(q_i . k_z'), over the pairs that `mask` keeps.

    For queries q [R, d] and keys k [K, d], the log normalisers n [R] cost O(R K d) once. A block of m x m entries costs
    O(m^2 d). No [R, K] array is stored. Products are computed in `dtype` (bfloat16 on a GPU) and accumulated in
    float32. The caller may pass `norms` (n) and `low` (the keys in `dtype`) if they are already known."""

    def __init__(
        self, queries: Tensor, keys: Tensor, mask: Mask | None = None, dtype: torch.dtype | None = None,
        low: Tensor | None = None, norms: Tensor | None = None,
    ):  # fmt: skip
        self.queries, self.keys, self.mask, self.dtype = queries, keys, mask, dtype
        self.num_rows, self.num_states, self.device = len(queries), len(keys), keys.device
        self.low = keys.detach().to(dtype or keys.dtype) if low is None else low
        if norms is not None:
            self.log_norm = norms
        elif keys.is_cuda:
            _ = self.log_norm  # on a GPU, computed now, in parallel with the emissions

    @cached_property
    def log_norm(self) -> Tensor:
        """The log normalisers n [R]; zero for a row that is masked completely."""
        with torch.set_grad_enabled(self.trained):  # even if the first caller records no gradients
            norms = self.normalisers(self.queries, self.keys)
            return norms if self.mask is None else norms.masked_fill(norms == -torch.inf, 0.0)

    def normalisers(self, queries: Tensor, keys: Tensor) -> Tensor:
        return row_logsumexp(queries, keys, self.mask, self.dtype, self.low)

    @property
    def trained(self) -> bool:
        """Whether gradients flow to the queries or the keys."""
        return self.queries.requires_grad or self.keys.requires_grad

    def rows(self, states: Tensor) -> Tensor:
        logits = self.queries[states].to(self.keys.dtype) @ self.keys.T
        return self.kept(logits, states, slice(None)).sub(self.norms(states).unsqueeze(-1)).exp()

    def norms(self, rows: Tensor) -> Tensor:
        """The log normalisers of some rows: [...] -> [...]."""
        return take(self.log_norm, rows)

    def kept(self, logits: Tensor, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """Set masked logits to -inf."""
        return logits if self.mask is None else logits.masked_fill(~self.mask.keeps(rows, columns), -torch.inf)

    def forward(self, probs: Tensor) -> Tensor:
        """probs @ A. Without gradients, the rows of states whose probability is zero are skipped."""
        if must_not_look(probs):
            return add(probs[..., rows] @ tile for rows, tile in self.tiles())
        if not probs.is_cuda:
            return moved(self, probs)
        total = probs.new_zeros(*probs.shape[:-1], self.num_states)
        for states in self.some(probs != 0):
            total += probs[..., states] @ self.rows(states)
        return total

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        recorded = torch.is_grad_enabled() and (self.queries.requires_grad or self.keys.requires_grad)
        if self.mask is None and before.dim() == 2 and not recorded:
            queries, keys = take(self.queries, before), take(self.low, after)
            return block_probabilities(queries, keys, self.norms(before), self.dtype)
        if before.dim() == 1 and not recorded and not before.is_cuda:
            return block(self, before, after)
        logits = take(self.queries, before).to(self.keys.dtype) @ take(self.keys, after).mT
        return self.kept(logits, before, after).sub(self.norms(before).unsqueeze(-1)).exp()


class Softmax(SoftmaxEntry, Samplable):
    """A softmax transition from all states to all states, with queries and keys [K, d]. If several processes train
    together without a mask, each computes a part of the normalisers."""

    def normalisers(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self.mask is not None or not self.trained:
            return super().normalisers(queries, keys)
        return in_stripes(queries, keys, super().normalisers)

    def columns(self, states: Tensor) -> Tensor:
        """A[:, states]: [n] -> [K, n]."""
        logits = self.queries.to(self.keys.dtype) @ self.keys[states].T
        return self.kept(logits, slice(None), states).sub(self.log_norm[:, None]).exp()

    def backward(self, message: Tensor) -> Tensor:
        """A @ message. Without gradients, columns at which the message is zero are skipped."""
        if must_not_look(message):
            return torch.cat([message @ tile.T for _, tile in self.tiles()], -1)
        if not message.is_cuda:
            return pulled(self, message)
        total = message.new_zeros(*message.shape[:-1], self.num_rows)
        for states in self.some(message != 0):
            total += message[..., states] @ self.columns(states).T
        return total

    def forward_at(self, probs: Tensor, states: Tensor) -> Tensor:
        """probs @ A at the given states of each sequence. If these are few, only their columns of A are computed."""
        if states.numel() >= self.num_states:
            return super().forward_at(probs, states)
        return torch.stack([some @ self.columns(ids) for some, ids in zip(probs, states, strict=True)])

    def backward_at(self, message: Tensor, states: Tensor) -> Tensor:
        if states.numel() >= self.num_states:
            return super().backward_at(message, states)
        return torch.stack([self.rows(ids) @ some for some, ids in zip(message, states, strict=True)])

    def for_products(self, products: int) -> Transition:
        return written_out(self, products, self.keys.element_size())

    def between(self, ids: Tensor, groups: Groups | None = None) -> TimeVarying:
        if groups is None:
            return super().between(ids)
        if groups.in_order and self.trains_as_matrix:
            return ClassBlocks(self.matrix, ids, groups)
        queries, keys, norms = (
            groups.arrange(values) for values in (self.queries, self.keys, self.group_norms(groups))
        )
        blocks = SetBlocks(queries, keys, norms, groups.rows, self.dtype, groups.arrange(self.low))
        if self.mask is None:
            return blocks
        return LogitBlocks(self.kept(blocks.logits, ids[:, :-1], ids[:, 1:]), blocks.log_norm)

    def group_norms(self, groups: Groups) -> Tensor:
        """The log normalisers [K]. Only those of the states in `groups` need to be correct."""
        return self.log_norm

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        if self.trains_as_matrix:
            return self.matrix[before.unsqueeze(-1), after.unsqueeze(-2)]
        return super().blocks(before, after)

    @cached_property
    def matrix(self) -> Tensor:
        """A without a mask, in the precision of the products, for training."""
        with torch.set_grad_enabled(self.trained):
            return row_softmax(self.queries, self.keys, self.low)

    def dense(self) -> Tensor:
        return row_softmax(self.queries.to(self.keys.dtype), self.keys) if self.mask is None else super().dense()

    @property
    def trains_as_matrix(self) -> bool:
        """Whether training forms the whole matrix. This takes fewer products than computing the normalisers and the
        blocks separately."""
        small = self.mask is None and self.num_states <= LARGEST_MATRIX
        return small and self.trained and not self.keys.is_cuda and installed("engines.classed") is not None

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return invert(self.rows(states), uniform)

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        return invert(weights * self.columns(states).T, uniform)


def must_not_look(values: Tensor) -> bool:
    """Whether the computation must be the same whichever values are zero: while gradients are recorded, and in a CUDA
    graph."""
    return torch.is_grad_enabled() or (values.is_cuda and torch.cuda.is_current_stream_capturing())
