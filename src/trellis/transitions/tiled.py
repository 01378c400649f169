"""Base class of transitions whose matrix A is not stored but computed in tiles, a few rows at a time."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor

from trellis.kernels.lse.tiled import chunks
from trellis.transitions.dense import Dense

FEW = 4  # for fewer products, forming a dense matrix takes longer than it saves
ROOM = 1 << 30  # maximum bytes of a dense matrix on a CPU
Given = TypeVar("Given", bound="Tiled")


class Tiled(ABC):
    """A transition that can compute any rows of its matrix A, [n, K]."""

    num_rows: int  # the number of states, unless A is rectangular
    num_states: int
    device: torch.device

    @abstractmethod
    def rows(self, states: Tensor) -> Tensor:
        """A[states, :]: [n] -> [n, K]."""

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield A a few rows at a time: the slice of the row numbers, and the rows."""
        everything = torch.arange(self.num_rows, device=self.device)
        for rows in chunks(self.num_rows, self.num_states, self.device):
            yield rows, self.rows(everything[rows])

    def dense(self) -> Tensor:
        """The whole matrix A."""
        return torch.cat([tile for _, tile in self.tiles()])

    def max_product(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """For each state z', the max and argmax over z of scores(z) + log A(z, z'), computed tile by tile. Only the
        rows of states that have a score other than -inf are computed."""
        best = scores.new_full((len(scores), self.num_states), -torch.inf)
        argument = torch.zeros_like(best, dtype=torch.int64)
        for states in self.some(scores > -torch.inf):
            values, found = (scores[:, states, None] + self.rows(states).log()).max(-2)
            argument = torch.where(values > best, states[found], argument)
            best = torch.maximum(values, best)
        return best, argument

    def some(self, which: Tensor) -> Iterator[Tensor]:
        """Yield the states that are selected in any row of the mask `which` [..., K], in chunks whose rows of A fit in
        memory."""
        chosen = which.reshape(-1, which.shape[-1]).any(0).nonzero().flatten()
        return (chosen[part] for part in chunks(len(chosen), self.num_states, self.device))


def add(tensors: Iterable[Tensor]) -> Tensor:
    return reduce(operator.add, tensors)


def written_out(operator: Given, products: int, size: int) -> Given | Dense:
    """The transition as a dense matrix with `size` bytes per number. If there are few products, or if the matrix would
    take too much memory, the result is `operator` itself. Forming the matrix takes as long as one product."""
    if products < FEW or operator.num_states**2 * size > room(operator.device):
        return operator
    return Dense(operator.dense())


def room(device: torch.device) -> float:
    """The number of bytes that a dense matrix may take on this device."""
    return torch.cuda.mem_get_info(device)[0] / 3 if device.type == "cuda" else ROOM
