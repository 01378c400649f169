"""Softmax transitions whose row normalisers are computed when they are first used."""

import torch
from torch import Tensor

from trellis.transitions.softmax import Softmax
from trellis.types import Groups

AT_ONCE = 256  # rows that are computed together


class LazySoftmax(Softmax):
    """A softmax transition that computes the normaliser of a row when it is first used, without mask or gradients.

    A sentence needs only the normalisers of its live states. With k live states per step, they cost O(k K d) per step;
    the normalisers of all K states cost O(K^2 d)."""

    def __init__(self, given: Softmax) -> None:
        self.values = torch.full((given.num_states,), torch.nan, device=given.device, dtype=given.keys.dtype)
        super().__init__(given.queries.detach(), given.keys.detach(), None, given.dtype, given.low, self.values)
        del self.log_norm  # computed when it is first used, on a GPU too

    @property
    def missing(self) -> Tensor:
        """The rows whose normalisers have not been computed: [n]."""
        return self.values.isnan().nonzero().flatten()

    def need(self, rows: Tensor) -> None:
        """Compute the normalisers of the given rows [n], except those that are known already."""
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
