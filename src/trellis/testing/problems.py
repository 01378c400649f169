"""Random chains that are small enough to enumerate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.testing.oracle import Paths
from trellis.transitions import Blocks, Dense
from trellis.types import Belief, Potentials


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Problem(NamedTuple):
    """The arguments of inference for a chain: prior, transition, potentials and lengths."""

    prior: Belief  # [B, K]
    transition: Dense | Blocks
    potentials: Potentials
    lengths: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.potentials.table.dtype

    @property
    def num_states(self) -> int:
        return self.transition.num_states

    def widened(self) -> Problem:
        """The same chain, with potentials for all states instead of a few live ones."""
        return self._replace(potentials=self.potentials.widen(self.num_states))

    def matrices(self) -> Tensor:
        """One matrix per sequence and step: [B, T-1, K, K]."""
        batch, steps = self.potentials.rows.shape
        return self.transition.dense().expand(batch, steps - 1, self.num_states, self.num_states)

    def paths(self) -> list[Paths]:
        """The enumerated paths of each sequence."""
        weights = self.potentials.widen(self.num_states).gather().exp().double().numpy()
        prior, matrices = self.prior.probs.double().numpy(), self.matrices().double().numpy()
        return [
            Paths(prior[b], matrices[b, : max(n - 1, 0)], weights[b, :n]) for b, n in enumerate(self.lengths.tolist())
        ]


def distributions(generator: torch.Generator, *shape: int, zeros: float = 0.0) -> Tensor:
    """Random distributions along the last axis; about a fraction `zeros` of their entries is zero."""
    weights = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.05
    kept = torch.rand(shape, generator=generator) >= zeros
    some = torch.randint(shape[-1], (*shape[:-1], 1), generator=generator)
    weights = weights * kept.scatter(-1, some, True)
    return weights / weights.sum(-1, keepdim=True)


def transition_of(matrix: Tensor) -> Dense | Blocks:
    """The `Transition` object for a transition matrix [K, K], or for time-varying matrices [..., T-1, K, K]."""
    return Dense(matrix) if matrix.dim() == 2 else Blocks(matrix)


def random_problem(
    seed: int, batch: int, steps: int, states: int, symbols: int = 4, live: int | None = None, varying: str = "no",
    zeros: float = 0.0, missing: float = 0.0, shortest: int = 1, dtype: torch.dtype = torch.float64,
) -> Problem:  # fmt: skip
    """A random chain. Its transitions are the same everywhere (`varying` = "no"), or vary by step ("step"), or by
    sequence and step ("sequence"). `live` is the number of states that can emit each symbol (None: all)."""
    generator = torch.Generator().manual_seed(seed)
    leading = {"no": (), "step": (steps - 1,), "sequence": (batch, steps - 1)}[varying]
    matrix = distributions(generator, *leading, states, states, zeros=zeros)
    prior = distributions(generator, batch, states, zeros=zeros)
    table = distributions(generator, states, symbols, zeros=zeros).T.log().contiguous()
    rows = torch.randint(symbols, (batch, steps), generator=generator)
    rows[torch.rand(batch, steps, generator=generator) < missing] = -1
    lengths = torch.randint(shortest, steps + 1, (batch,), generator=generator)
    ids = None
    if live is not None:
        support = torch.rand(symbols, states, generator=generator).argsort(-1)[:, :live]
        table, ids = table.gather(-1, support), support[rows.clamp(min=0)]
    potentials = Potentials(table.to(dtype), rows, ids)
    return Problem(Belief(prior.to(dtype)), transition_of(matrix.to(dtype)), potentials, lengths)


def random_vectors(
    states: int, symbols: int, length: int, emission_length: int | None = None, seed: int = 0, runs: int | None = None
) -> dict[str, Tensor]:
    """Standard normal embeddings of a DenseHMM in float64, of one model or of `runs` models."""
    generator = torch.Generator().manual_seed(seed)
    other = emission_length or length
    shapes = {"u": (states, length), "z": (states, length), "z_start": (length,)}
    shapes |= {"v": (symbols, other), "w": (states, other)}
    leading = () if runs is None else (runs,)
    return {
        role: torch.randn(*leading, *shape, generator=generator, dtype=torch.float64) for role, shape in shapes.items()
    }
