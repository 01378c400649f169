"""Large tables of weights whose rows are divided among the processes of a job, with the state of their optimiser."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trellis import distributed
from trellis.learning.base import GradientModel, nothing_to_fetch


class DividedTables:
    """Tables of which each process updates a part of the rows, its *own* rows.

    The other rows of a table are out of date after an update. The rows that a step reads are fetched from their
    owners beforehand, and `complete` fetches all rows."""

    def __init__(self, tables: Iterable[nn.Parameter]) -> None:
        chosen = tables if distributed.is_joined() else ()
        self.own = {table: distributed.share_of(len(table)) for table in chosen}
        self.parts = {table: nn.Parameter(table.detach()[rows]) for table, rows in self.own.items()}  # in its memory
        self.read: dict[nn.Parameter, Tensor] = {}  # the rows that the last step has read, if not all

    def part(self, weight: nn.Parameter) -> nn.Parameter:
        """What this process updates: its own rows of a table, or all of another weight."""
        return self.parts.get(weight, weight)

    def own_rows(self, weight: nn.Parameter, value: Tensor) -> Tensor:
        """The own rows of a tensor that has the rows of `weight`; scalars are returned as they are."""
        return value[self.own[weight]] if weight in self.own and value.dim() else value

    def all_rows(self, weight: nn.Parameter, value: Tensor) -> Tensor:
        """The inverse of `own_rows`, with the rows of all processes."""
        if weight not in self.own or not value.dim():
            return value
        rows = torch.zeros_like(weight)
        rows[self.own[weight]] = value
        return distributed.add_up(rows)

    @torch.no_grad()
    def complete(self) -> None:
        """Fetch all rows of all tables."""
        for table, part in self.parts.items():
            table.copy_(self.all_rows(table, part))

    def set_gradients(self) -> None:
        """Give each part the gradient of its rows."""
        for table, part in self.parts.items():
            part.grad = None if table.grad is None else table.grad[self.own[table]]

    @contextmanager
    def served(self, model: GradientModel) -> Iterator[None]:
        """A context for a training step, in which the model fetches the rows it reads."""
        model.fetch = self.fetch if self.own else nothing_to_fetch
        try:
            yield
        finally:
            model.fetch = nothing_to_fetch

    @torch.no_grad()
    def fetch(self, rows: Mapping[nn.Parameter, Tensor]) -> None:
        """Fetch the rows of a step, and those of the step before, from which the carried state starts."""
        for table, own in self.own.items():
            ids, before = rows.get(table), self.read.pop(table, None)
            if ids is None or before is None:
                table.copy_(self.all_rows(table, self.parts[table]))
            else:
                both = torch.cat([ids, before])
                others = (both < own.start) | (both >= own.stop)
                found = table.index_select(0, both).masked_fill_(others.unsqueeze(1), 0.0)
                table.index_copy_(0, both, distributed.add_up(found))
            if ids is not None:
                self.read[table] = ids
