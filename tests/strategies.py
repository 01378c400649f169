"""Random problems for inference: numbers from a seed, shapes from hypothesis."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from oracle import Paths
from trellis.transitions import Blocks, Dense
from trellis.types import Belief, Potentials

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10, torch.int64: 0.0}


class Problem(NamedTuple):
    """A chain as inference takes it."""

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
        """The same chain with all states live."""
        return self._replace(potentials=self.potentials.widen(self.num_states))

    def matrices(self) -> Tensor:
        """One matrix per sequence and step: [B, T-1, K, K]."""
        batch, steps = self.potentials.rows.shape
        return self.transition.dense().expand(batch, steps - 1, self.num_states, self.num_states)

    def paths(self) -> list[Paths]:
        """The oracle of each sequence."""
        weights = self.potentials.widen(self.num_states).gather().exp().double().numpy()
        prior, matrices = self.prior.probs.double().numpy(), self.matrices().double().numpy()
        return [
            Paths(prior[b], matrices[b, : max(n - 1, 0)], weights[b, :n]) for b, n in enumerate(self.lengths.tolist())
        ]


def distributions(generator: torch.Generator, *shape: int, zeros: float = 0.0) -> Tensor:
    """Random distributions along the last axis, a fraction of whose entries is zero."""
    weights = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.05
    kept = torch.rand(shape, generator=generator) >= zeros
    some = torch.randint(shape[-1], (*shape[:-1], 1), generator=generator)
    weights = weights * kept.scatter(-1, some, True)
    return weights / weights.sum(-1, keepdim=True)


def transition_of(matrix: Tensor) -> Dense | Blocks:
    """One matrix [K, K], or matrices that vary [..., T-1, K, K]."""
    return Dense(matrix) if matrix.dim() == 2 else Blocks(matrix)


def random_problem(
    seed: int, batch: int, steps: int, states: int, symbols: int = 4, live: int | None = None, varying: str = "no",
    zeros: float = 0.0, missing: float = 0.0, shortest: int = 1, dtype: torch.dtype = torch.float64,
) -> Problem:  # fmt: skip
    """A chain with random numbers; `varying` is no, step or sequence; `live` states per symbol where it is given."""
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


@st.composite
def problems(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = (torch.float64,), sparse: bool = False) -> Problem:
    """Small chains: any shape that can be enumerated, ragged, with zeros, gaps and time-varying transitions."""
    states = draw(st.integers(1, 3))
    return random_problem(
        seed=draw(st.integers(0, 2**31)),
        batch=draw(st.sampled_from([1, 2, 3, 17])),
        steps=draw(st.integers(1, 5)),
        states=states,
        symbols=draw(st.integers(1, 4)),
        live=draw(st.integers(1, states)) if sparse else None,
        varying=draw(st.sampled_from(["no", "step", "sequence"])),
        zeros=draw(st.sampled_from([0.0, 0.4])),
        missing=draw(st.sampled_from([0.0, 0.3])),
        shortest=draw(st.integers(0, 1)),
        dtype=draw(st.sampled_from(dtypes)),
    )


def assert_close(actual: Tensor, expected: Tensor | np.ndarray, tolerance: float | None = None) -> None:
    """Assert equality to the tolerance of the dtype, infinities included and NaN excluded."""
    tolerance = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    wanted = expected.detach().numpy() if isinstance(expected, Tensor) else expected
    np.testing.assert_allclose(actual.detach().numpy(), wanted, rtol=tolerance, atol=tolerance)
    assert not actual.isnan().any()


class Largest(TorchDispatchMode):
    """The most entries of any tensor that is made."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.entries = max(self.entries, tensor.numel())
        return made
