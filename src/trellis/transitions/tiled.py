"""Base class of operators that never form A: whole rows are processed a tile at a time."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor

from trellis.kernels.lse.tiled import chunks
from trellis.transitions.dense import Dense

FEW = 4  # products below which a dense matrix does not pay off
ROOM = 1 << 30  # maximum bytes of a dense matrix on a CPU
Given = TypeVar("Given", bound="Tiled")


class Tiled(ABC):
    """An operator that can compute any of its rows, [n, K]."""

    num_rows: int  # the number of states, unless A is rectangular
    num_states: int
    device: torch.device

    @abstractmethod
    def rows(self, states: Tensor) -> Tensor:
        """A[states, :]: [n] -> [n, K]."""

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """A, a few rows at a time."""
        everything = torch.arange(self.num_rows, device=self.device)
        for rows in chunks(self.num_rows, self.num_states, self.device):
            yield rows, self.rows(everything[rows])

    def dense(self) -> Tensor:
        """A itself."""
        return torch.cat([tile for _, tile in self.tiles()])

    def max_product(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """max and argmax over z of scores(z) + log A(z, z'), computed tile by tile. Takes O(n K) if n states z have a
        score other than -inf."""
        best = scores.new_full((len(scores), self.num_states), -torch.inf)
        argument = torch.zeros_like(best, dtype=torch.int64)
        for states in self.some(scores > -torch.inf):
            values, found = (scores[:, states, None] + self.rows(states).log()).max(-2)
            argument = torch.where(values > best, states[found], argument)
            best = torch.maximum(values, best)
        return best, argument

    def some(self, which: Tensor) -> Iterator[Tensor]:
        """The states selected by any mask of `which` [..., K], in chunks whose rows fit in memory."""
        chosen = which.reshape(-1, which.shape[-1]).any(0).nonzero().flatten()
        return (chosen[part] for part in chunks(len(chosen), self.num_states, self.device))


def add(tensors: Iterable[Tensor]) -> Tensor:
    return reduce(operator.add, tensors)


def written_out(operator: Given, products: int, size: int) -> Given | Dense:
    """The operator as a dense matrix, with `size` bytes per number. Forming the matrix takes as long as one product. If
    there are few products, or if the matrix does not fit, the operator itself is returned."""
    if products < FEW or operator.num_states**2 * size > room(operator.device):
        return operator
    return Dense(operator.dense())


def room(device: torch.device) -> float:
    """The bytes that a matrix may take."""
    return torch.cuda.mem_get_info(device)[0] / 3 if device.type == "cuda" else ROOM
