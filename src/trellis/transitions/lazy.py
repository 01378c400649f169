"""Softmax transitions whose row normalisers are computed when they are first used."""

import torch
from torch import Tensor

from trellis.transitions.softmax import Softmax
from trellis.types import Groups

AT_ONCE = 256  # rows that are computed together


class LazySoftmax(Softmax):
    """A softmax without a mask and without gradients. A sentence over live states needs the normalisers of these states
    only: O(k K d) per step, instead of O(K^2 d) for all."""

    def __init__(self, given: Softmax) -> None:
        self.values = torch.full((given.num_states,), torch.nan, device=given.device, dtype=given.keys.dtype)
        super().__init__(given.queries.detach(), given.keys.detach(), None, given.dtype, given.low, self.values)
        del self.log_norm  # computed when it is first used, on a GPU too

    @property
    def missing(self) -> Tensor:
        """The rows whose normalisers have not been computed: [n]."""
        return self.values.isnan().nonzero().flatten()

    def need(self, rows: Tensor) -> None:
        """Compute the normalisers of some rows [n], if they are not known."""
        for some in rows[self.values[rows].isnan()].unique().split(AT_ONCE):
            self.values[some] = super().normalisers(self.queries[some], self.keys).to(self.values.dtype)

    def norms(self, rows: Tensor) -> Tensor:
        self.need(rows.flatten())
        return self.values[rows]

    def group_norms(self, groups: Groups) -> Tensor:
        self.need(groups.sets[groups.rows.unique()].flatten())
        return self.values

    def normalisers(self, queries: Tensor, keys: Tensor) -> Tensor:
        self.need(self.missing)
        return self.values
