"""Time-varying transitions, such as those between the live states of adjacent steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from trellis.kernels.pairs import pair_logits
from trellis.kernels.rows import add_rows, take
from trellis.transitions.base import Operator
from trellis.transitions.dense import DenseStep, cut
from trellis.types import Groups


class TimeVarying(ABC):
    """The T - 1 transitions between adjacent steps, over K states. They may differ between the sequences of a batch."""

    num_states: int

    @abstractmethod
    def at(self, step: int) -> Operator:
        """The operator between steps `step` and `step + 1`."""

    @abstractmethod
    def dense(self) -> Tensor:
        """All matrices: [B, T-1, K, K], or [T-1, K, K] if shared by all sequences."""

    @abstractmethod
    def some(self, sequences: Tensor) -> TimeVarying:
        """The transitions of the given sequences [n] of the batch."""

    def expected(self, left: Tensor, right: Tensor) -> Tensor:
        """Expected transitions left(z) A(z, z') right(z') of every step: [B, T-1, K] twice -> like `dense`."""
        matrix = self.dense()
        pairs = matrix * left.unsqueeze(-1) * right.unsqueeze(-2)
        return pairs.sum(0) if pairs.dim() > matrix.dim() else pairs

    def between(self, ids: Tensor, groups: Groups | None = None) -> Blocks:
        """The transitions between the live states [B, T, k] of adjacent steps."""
        return Blocks(cut(self.dense(), ids[:, :-1], ids[:, 1:]))

    def collect(self, before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
        """Expected transitions between all states, from those between live states.

        [..., k], [..., k'], [..., k, k'] -> like `dense`."""
        rows = pairs.new_zeros(*pairs.shape[:-1], self.num_states)
        rows = rows.scatter_add(-1, after.unsqueeze(-2).expand_as(pairs), pairs)
        full = pairs.new_zeros(*pairs.shape[:-2], self.num_states, self.num_states)
        full = full.scatter_add(-2, before.unsqueeze(-1).expand_as(rows), rows)
        return full.sum(0) if full.dim() > self.dense().dim() else full


class PerStep(TimeVarying):
    """One operator per step, constructed from that step's slices of tensors [B, T-1, k, *]."""

    def __init__(self, operator: Callable[..., Operator], *tensors: Tensor) -> None:
        self.operator, self.tensors, self.num_states = operator, tensors, tensors[0].shape[-2]

    def at(self, step: int) -> Operator:
        return self.operator(*(tensor.select(-3, step) for tensor in self.tensors))

    def dense(self) -> Tensor:
        return self.operator(*self.tensors).dense()

    def some(self, sequences: Tensor) -> PerStep:
        return PerStep(self.operator, *(tensor[sequences] for tensor in self.tensors))


class Blocks(TimeVarying):
    """Dense transition matrices: [T-1, K, K] for all sequences, or [B, T-1, K, K], one set per sequence."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.num_states = matrix, matrix.shape[-1]

    def at(self, step: int) -> DenseStep:
        return DenseStep(self.matrix.select(-3, step))

    def dense(self) -> Tensor:
        return self.matrix

    def some(self, sequences: Tensor) -> Blocks:
        return Blocks(self.matrix[sequences]) if self.matrix.dim() == 4 else self


class LogitBlocks(Blocks):
    """The blocks exp(x - n) [B, T-1, k, k] between live states, given as logits x and log normalisers n [B, T-1, k]."""

    def __init__(self, logits: Tensor, log_norm: Tensor) -> None:
        self.logits, self.log_norm, self.num_states = logits, log_norm, logits.shape[-1]

    @cached_property
    def matrix(self) -> Tensor:  # type: ignore[override]
        return (self.logits - self.log_norm.unsqueeze(-1)).exp()

    def some(self, sequences: Tensor) -> LogitBlocks:
        return LogitBlocks(self.logits[sequences], self.log_norm[sequences])


class SplitBlocks(LogitBlocks):
    """The blocks exp(e) softmax(x), if the live states of each step are one class. x [B, T-1, k, k] are logits, and e
    [B, T-1, k] is the log-probability that a state is followed by some state of the next step's class."""

    def __init__(self, logits: Tensor, entered: Tensor) -> None:
        self.logits, self.entered, self.num_states = logits, entered, logits.shape[-1]

    @cached_property
    def log_norm(self) -> Tensor:  # type: ignore[override]
        return self.logits.logsumexp(-1) - self.entered

    def some(self, sequences: Tensor) -> SplitBlocks:
        return SplitBlocks(self.logits[sequences], self.entered[sequences])


class SetBlocks(LogitBlocks):
    """The blocks exp(q_i . k_j - n_i) between live states, if there are G sets of live states and each step has one of
    them. The blocks are computed when they are first used.

    Queries q and keys k are [G, k, d], log normalisers n are [G, k], and rows [B, T] holds the index of each step's
    set. Products are computed in `dtype`; `low` is a copy of the keys in this precision."""

    def __init__(
        self, queries: Tensor, keys: Tensor, norms: Tensor, rows: Tensor, dtype: torch.dtype | None, low: Tensor
    ) -> None:
        self.queries, self.keys, self.norms, self.rows, self.dtype = queries, keys, norms, rows, dtype
        self.low, self.num_states = low, norms.shape[-1]

    @cached_property
    def logits(self) -> Tensor:  # type: ignore[override]
        return pair_logits(self.queries, self.keys, self.rows, self.dtype)

    @cached_property
    def log_norm(self) -> Tensor:  # type: ignore[override]
        return take(self.norms, self.rows[:, :-1])

    def some(self, sequences: Tensor) -> SetBlocks:
        return SetBlocks(self.queries, self.keys, self.norms, self.rows[sequences], self.dtype, self.low)


class PairBlocks(Blocks):
    """Blocks of which only M are distinct: `pairs` [M, k, k] are the distinct blocks, and `numbers` [B, T-1] holds the
    index of each step's block."""

    def __init__(self, pairs: Tensor, numbers: Tensor) -> None:
        self.pairs, self.numbers, self.num_states = pairs, numbers, pairs.shape[-1]

    @cached_property
    def matrix(self) -> Tensor:  # type: ignore[override]
        return take(self.pairs, self.numbers)

    def some(self, sequences: Tensor) -> PairBlocks:
        return PairBlocks(self.pairs, self.numbers[sequences])


class ClassBlocks(Blocks):
    """Blocks of a dense matrix A [K, K], if the live states of each step are one of C classes. A class is a range of
    states.

    `begins` [C + 1] holds the first state of each class, and the number of states. Engines that cannot read the blocks
    from A use copies of them (`matrix`)."""

    def __init__(self, whole: Tensor, ids: Tensor, groups: Groups) -> None:
        self.whole, self.ids, self.groups, self.num_states = whole, ids, groups, ids.shape[-1]
        self.begins = nn.functional.pad(groups.sets[:, 0], (0, 1), value=len(whole))

    @cached_property
    def matrix(self) -> Tensor:  # type: ignore[override]
        if self.groups.in_order:  # no index of every entry
            by_class = self.whole.reshape(*self.groups.sets.shape * 2)
            return by_class[self.groups.rows[:, :-1], :, self.groups.rows[:, 1:]]
        return self.whole[self.ids[:, :-1].unsqueeze(-1), self.ids[:, 1:].unsqueeze(-2)]

    def by_states(self, pairs: Tensor) -> Tensor:
        """Sum expected transitions between live states over all sequences and steps: [B, T-1, k, k] -> [K, K]. All
        classes must have the same number of states."""
        classes, live = self.groups.sets.shape
        kinds = (self.groups.rows[:, :-1] * classes + self.groups.rows[:, 1:]).flatten()
        found = add_rows(pairs.flatten(0, 1), kinds, classes**2).view(classes, classes, live, live)
        return found.transpose(1, 2).reshape(self.whole.shape)

    def some(self, sequences: Tensor) -> Blocks:
        return Blocks(self.matrix[sequences])
