"""What operators that never write out A have in common: everything that looks at whole rows does so a few at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from trellis.kernels.lse.tiled import chunks
from trellis.operators.base import Transition, invert


class Unwritten(Transition):
    """An operator that knows how to make any of its rows [n, K]."""

    num_rows: int  # as many as states, unless it is rectangular
    device: torch.device

    @abstractmethod
    def rows(self, states: Tensor) -> Tensor: ...

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """A, a few rows at a time."""
        everything = torch.arange(self.num_rows, device=self.device)
        for rows in chunks(self.num_rows, self.num_states, self.device):
            yield rows, self.rows(everything[rows])

    def dense(self) -> Tensor:
        return torch.cat([tile for _, tile in self.tiles()])

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """max and argmax of scores(z) + log A(z, z'). Max-product does not factor: O(K^2) time, in chunks of z."""
        best = scores.new_full((len(scores), self.num_states), -torch.inf)
        argument = torch.zeros_like(best, dtype=torch.int64)
        for rows, tile in self.tiles():
            values, found = (scores[:, rows, None] + tile.log()).max(-2)
            argument = torch.where(values > best, found + rows.start, argument)
            best = torch.maximum(values, best)
        return best, argument

    def sample_next(self, states: Tensor, uniform: Tensor) -> Tensor:
        return invert(self.rows(states), uniform)
