"""Transitions in two steps: first the class of the next state is chosen, then the state within this class."""

import torch
from torch import Tensor

from trellis.kernels.pairs import set_logits
from trellis.kernels.rows import scaled_softmax, take
from trellis.transitions.base import Entry, Samplable, Transition, invert
from trellis.transitions.tiled import Tiled, written_out
from trellis.transitions.varying import PairBlocks, SplitBlocks, TimeVarying
from trellis.types import Groups


class NestedEntry(Tiled, Entry):
    """A[i, z'] = p(c' | i) exp(q_i . k_z') / sum_j exp(q_i . k_j), where c' is the class of z', and the sum is over the
    states j of c'.

    Each class is a range of K / C consecutive states. A block between two classes of n states costs O(n^2 d), and no
    normaliser over all states is computed. Queries q are [R, d], keys k are [K, d], and log p(c' | i) is [R, C]."""

    def __init__(self, queries: Tensor, keys: Tensor, log_classes: Tensor, dtype: torch.dtype | None = None) -> None:
        self.queries, self.keys, self.log_classes, self.dtype = queries, keys, log_classes, dtype or keys.dtype
        self.num_rows, self.num_states, self.device = len(queries), len(keys), keys.device
        self.num_classes = log_classes.shape[1]
        self.live = self.num_states // self.num_classes

    @property
    def class_keys(self) -> Tensor:
        return self.keys.view(self.num_classes, self.live, -1)

    def rows(self, states: Tensor) -> Tensor:
        logits = self.queries[states].to(self.keys.dtype) @ self.keys.T
        inside = logits.view(-1, self.num_classes, self.live).softmax(-1)
        return (inside * self.log_classes[states].exp().unsqueeze(-1)).flatten(1)

    def forward(self, probs: Tensor) -> Tensor:
        total = probs.new_zeros(*probs.shape[:-1], self.num_states)
        for states in self.some(probs != 0):
            total = total + probs[..., states] @ self.rows(states)
        return total

    def blocks(self, before: Tensor, after: Tensor) -> Tensor:
        if not self.are_classes(after):
            rows = self.rows(before.flatten()).view(*before.shape, -1)
            return rows.gather(-1, after.unsqueeze(-2).expand(*before.shape, -1))
        entered = after[..., 0] // self.live
        inside = (take(self.queries, before).to(self.keys.dtype) @ take(self.class_keys, entered).mT).softmax(-1)
        return (
            inside * take(self.log_classes.flatten(), before * self.num_classes + entered[..., None]).exp()[..., None]
        )

    def are_classes(self, states: Tensor) -> bool:
        """Whether each row of `states` [..., n] lists the states of one class, in order. In a CUDA graph, only their
        number can be checked."""
        if states.shape[-1] != self.live or (states.is_cuda and torch.cuda.is_current_stream_capturing()):
            return states.shape[-1] == self.live
        first = states[..., :1] // self.live * self.live
        return bool((states == first + torch.arange(self.live, device=states.device)).all())


class Nested(NestedEntry, Samplable):
    """A nested transition from all states to all states."""

    def columns(self, states: Tensor) -> Tensor:
        """A[:, states]: [n] -> [K, n]."""
        return torch.cat([tile[:, states] for _, tile in self.tiles()])

    def backward(self, message: Tensor) -> Tensor:
        return torch.cat([message @ tile.T for _, tile in self.tiles()], -1)

    def for_products(self, products: int) -> Transition:
        return written_out(self, products, self.keys.element_size())

    def between(self, ids: Tensor, groups: Groups | None = None) -> TimeVarying:
        if groups is None:
            return super().between(ids)
        steps = groups.rows[:, :-1] * self.num_classes + groups.rows[:, 1:]
        if steps.is_cuda:
            logits, entered = (part.unflatten(0, steps.shape) for part in self.class_blocks(steps.flatten()))
            return SplitBlocks(logits, entered)
        pairs, numbers = steps.unique(return_inverse=True)
        return PairBlocks(scaled_softmax(*self.class_blocks(pairs)), numbers)

    def class_blocks(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [M, k, k] between the states of two classes c and c', and log p(c' | z) [M, k] for the states z of c.
        `pairs` [M] holds the numbers c C + c' of M pairs of classes."""
        queries = self.queries.view(self.num_classes, self.live, -1)
        before, after = pairs // self.num_classes, pairs % self.num_classes
        logits = set_logits(queries, self.class_keys, before, after, self.dtype)
        entered = self.log_classes.view(self.num_classes, self.live, -1).transpose(1, 2).flatten(0, 1)
        return logits, take(entered, pairs)

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return invert(self.rows(states), uniform)

    def sample_prev(self, states: Tensor, weights: Tensor, uniform: Tensor) -> Tensor:
        return invert(weights * self.columns(states).T, uniform)
