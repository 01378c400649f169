"""Random problems for inference, of shapes from hypothesis; and how large the tensors become that are made."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trellis.testing.problems import Problem, random_problem


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


class Largest(TorchDispatchMode):
    """The most entries of any tensor that is made."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.entries = max(self.entries, tensor.numel())
        return made
