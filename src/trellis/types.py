"""Named tuples shared across packages: B sequences, T steps, K states, V symbols, and k live states, which are those
that can emit the observed symbol."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis import distributed
from trellis.kernels.rows import take


class Batch(NamedTuple):
    """Token ids of B sequences, padded to T; positions at or beyond a sequence's length are ignored."""

    tokens: Tensor  # [B, T] int64; -1 marks a missing observation
    lengths: Tensor  # [B] int64
    fresh: Tensor  # [B] bool: whether this row begins a new sequence instead of continuing that of the last batch
    equal_lengths: bool = False  # known statically: every length is T
    all_fresh: bool | None = None  # known statically: all rows are fresh (True) or none is (False)
    total: int | None = None  # tokens in the rows of all processes, if this process has only some of the rows
    idle: bool = False  # no row was left for this process: it repeats a row of another one, which must not be counted

    @property
    def num_tokens(self) -> int:
        """The number of tokens, in all processes."""
        return int(self.lengths.sum()) if self.total is None else self.total

    def to(self, device: torch.device) -> Batch:
        tokens, lengths, fresh = (field.to(device, non_blocking=True) for field in self[:3])
        return self._replace(tokens=tokens, lengths=lengths, fresh=fresh)


class Belief(NamedTuple):
    """A distribution over states: probs[b, i] is the probability of state ids[b, i], or of state i if ids is None."""

    probs: Tensor  # [B, k]
    ids: Tensor | None = None  # [B, k] int64


class Groups(NamedTuple):
    """The live states of every step, if they form few distinct sets: step t of sequence b has sets[rows[b, t]]."""

    sets: Tensor  # [G, k] int64
    rows: Tensor  # [B, T] int64
    in_order: bool = False  # known statically: the concatenated sets are 0, 1, 2, ...

    def arrange(self, values: Tensor) -> Tensor:
        """Gather per-state values by set: [K, ...] -> [G, k, ...]."""
        return values.unflatten(0, self.sets.shape) if self.in_order else take(values, self.sets)


class Potentials(NamedTuple):
    """The likelihood o_t(z) of each observation in state z, as rows of a table: log o_t(z) = table[rows[b, t], z].

    The table may have one row per word, for example. Row -1 stands for a missing observation, for which o_t(z) = 1, or
    exp(missing[z]) if `missing` is given. If `ids` is given, column i of step t refers to the live state ids[b, t, i],
    and o_t(z) = 0 for all other states z. If `ids` is None, all states are live.
    """

    table: Tensor  # [N, k]
    rows: Tensor  # [B, T] int64
    ids: Tensor | None = None  # [B, T, k] int64
    groups: Groups | None = None  # the same ids, if they come from a few sets
    all_observed: bool = False  # known statically: no observation is missing
    missing: Tensor | None = None  # [K]: log o_t of a missing observation, if it is not zero; only with `ids`

    @classmethod
    def of(cls, log_potentials: Tensor, ids: Tensor | None = None) -> Potentials:
        """Potentials from the values log o_t(z) of every step: [B, T, k]."""
        batch, steps, live = log_potentials.shape
        rows = torch.arange(batch * steps, device=log_potentials.device).view(batch, steps)
        return cls(log_potentials.reshape(-1, live), rows, ids)

    def inside(self, lengths: Tensor) -> Tensor:
        """Mask of the steps before each sequence's end: [B, T] bool."""
        return torch.arange(self.rows.shape[1], device=lengths.device) < lengths[:, None]

    def gaps(self, lengths: Tensor) -> Tensor:
        """Mask of missing observations before each sequence's end: [B, T] bool."""
        return (self.rows < 0) & self.inside(lengths)

    def has_gaps(self, lengths: Tensor) -> bool:
        return not self.all_observed and bool(self.gaps(lengths).any())

    def checked(self, lengths: Tensor) -> Potentials:
        """The same potentials; `all_observed` is set if they are over live states and no observation is missing."""
        return self if self.ids is None else self._replace(all_observed=not self.has_gaps(lengths))

    def gather(self) -> Tensor:
        """log o_t(z) of every step: [B, T, k], zero where the observation is missing."""
        if self.all_observed:
            return take(self.table, self.rows)
        return take(self.table, self.rows.clamp(min=0)).masked_fill((self.rows < 0).unsqueeze(-1), 0.0)

    def first_ids(self) -> Tensor | None:
        """The live states of the first step, [B, k]; None if all states are live."""
        if self.ids is None or (not self.all_observed and bool((self.rows[:, 0] < 0).any())):
            return None
        return self.ids[:, 0]

    def first(self, sequence: int, length: int) -> Potentials:
        """The potentials of the first `length` steps of one sequence."""
        ids = None if self.ids is None else self.ids[sequence : sequence + 1, :length]
        return self._replace(rows=self.rows[sequence : sequence + 1, :length], ids=ids, groups=None)

    def widen(self, num_states: int) -> Potentials:
        """The same potentials over all K states: -inf for states that are not live."""
        if self.ids is None:
            return self
        batch, steps = self.rows.shape
        full = self.table.new_full((batch, steps, num_states), -torch.inf).scatter(-1, self.ids, self.gather())
        missing = full.new_zeros(()) if self.missing is None else self.missing
        return Potentials.of(torch.where((self.rows < 0).unsqueeze(-1), missing, full))


class Filtered(NamedTuple):
    """The result of a forward pass."""

    log_norms: Tensor  # [B, T]: log p(x_t | x_<t), zero in the padding
    probs: Tensor  # [B, T, k]: p(z_t | x_<=t), zero in the padding
    belief: Belief  # the filtered distribution at each sequence's last step, where the next batch continues


class Posterior(NamedTuple):
    """The result of forward-backward. The posterior of a sequence of probability zero is all zero."""

    log_likelihood: Tensor  # [B]
    probs: Tensor  # [B, T, k]: p(z_t | x)


class Counts(NamedTuple):
    """Expected sufficient statistics, which can be added and scaled."""

    log_likelihood: Tensor  # scalar, float64
    start: Tensor  # [K]
    transition: Tensor  # statistics in the layout of the transition; [K, K] if dense
    emission: Tensor  # how often each state emits each table row [N, k]; after an E-step, the emission's statistics

    def plus(self, other: Counts, scale: float = 1.0) -> Counts:
        """self + scale * other."""
        others = other if scale == 1.0 else [scale * value for value in other]
        return Counts(*(a + b for a, b in zip(self, others, strict=True)))

    def over_processes(self, idle: bool = False) -> Counts:
        """The counts summed over all processes of a job, except idle ones."""
        if not distributed.is_joined():
            return self
        return Counts(*(distributed.add_up_rows(torch.zeros_like(c) if idle else c.contiguous()) for c in self))
