"""Choose the engine that runs the recursions over time:

- on a CPU, small.py (NumPy) for small problems, compiled.py (numba) for other dense matrices and blocks of live states,
  and classed.py (numba) if the live states of each step are one class;
- on a GPU, graphed.py for dense transitions, and triton.py for blocks of live states;
- otherwise, homogeneous.py (torch) for a constant transition with all states live, and reference.py (torch) for
  everything else. On a GPU, replay.py runs homogeneous.py and reference.py as one CUDA graph for small problems."""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis.engines import homogeneous, reference, replay, small
from trellis.engines.reference import AnyTransition
from trellis.kernels.optional import installed
from trellis.transitions import Blocks, ClassBlocks, Dense, LogitBlocks, Stacked, TimeVarying
from trellis.types import Belief, Potentials

LONG = 256  # a batch of B sequences has few and long ones if it has at least this many steps times B
LARGEST_BLOCK = 1024
LARGEST_ON_HOST = 512  # maximum states for which a matrix fits in the cache of a CPU core
underflows = np.errstate(all="ignore")  # decorator: probabilities may underflow, whatever NumPy is set to raise


def optional_engine(name: str) -> ModuleType | None:
    """The engine `compiled`, `classed`, `triton` or `graphed`, or None if its dependencies are not installed."""
    return installed(f"engines.{name}")


def engine(transition: AnyTransition, values: Tensor, ids: Tensor | None = None) -> ModuleType:
    """The engine for this type of transition, whatever the size of the problem."""
    if ids is not None:
        return reference
    plain = reference if isinstance(transition, TimeVarying) else homogeneous
    if not isinstance(transition, Dense | Blocks):
        return plain
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):
        return optional_engine("classed" if isinstance(transition, ClassBlocks) else "compiled") or plain
    if values.is_cuda and values.dtype is torch.float32 and optional_engine("triton") is not None:
        if isinstance(transition, Dense):
            return optional_engine("graphed") or plain
        if fits_gpu(transition):
            return optional_engine("triton") or plain
    return plain


def choose(prior: Belief, transition: AnyTransition, potentials: Potentials, viterbi: bool = False) -> ModuleType:
    """The engine for this problem: `small` if it is small enough, otherwise the one that `engine` chooses."""
    if small.fits(prior, transition, potentials, viterbi):
        return small
    return engine(transition, potentials.table, potentials.ids)


def fits_gpu(transition: Blocks) -> bool:
    """Whether the engine `triton` can process these blocks: each sequence has its own, with at most 1,024 states."""
    by_sequence = isinstance(transition, LogitBlocks) or transition.matrix.dim() == 4
    return by_sequence and transition.num_states <= LARGEST_BLOCK


@underflows
def score(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] and each sequence's last state distribution; differentiable."""
    if better_on_host(transition, potentials):
        there = potentials.table.device
        here = Potentials(potentials.table.cpu(), potentials.rows.cpu())
        norms, belief = score(Belief(prior.probs.cpu()), Dense(transition.dense().cpu()), here, lengths.cpu())
        return norms.to(there), Belief(belief.probs.to(there))
    return run("score", prior, transition, potentials, lengths)


def run(name: str, *problem: Any) -> Any:
    """Call a function of the engine for this problem. On a GPU, if the engine would launch kernels step by step, a
    small problem is solved by one CUDA graph."""
    prior, transition, potentials, _ = problem
    module = choose(prior, transition, potentials, name == "viterbi")
    function, (batch, steps) = getattr(module, name), potentials.rows.shape
    if not step_by_step(function, transition, steps) or potentials.ids is not None or prior.ids is not None:
        return function(*problem)
    states = transition.num_states
    numbers = batch * states * (states if name == "viterbi" else steps)
    return replay.replayed(f"{module.__name__}.{name}", function, problem, numbers)


def step_by_step(function: Any, transition: AnyTransition, steps: int) -> bool:
    plain = function.__module__ in (reference.__name__, homogeneous.__name__)
    return plain and isinstance(transition, Dense | Stacked) and 1 < steps <= replay.LONGEST


def better_on_host(transition: AnyTransition, potentials: Potentials) -> bool:
    """Whether to compute on the CPU although the tensors are on a GPU: with a few long sequences, the GPU would be idle
    between kernel launches."""
    batch, steps = potentials.rows.shape
    few_and_long = potentials.table.is_cuda and steps >= LONG * batch
    small = isinstance(transition, Dense) and transition.num_states <= LARGEST_ON_HOST
    if not (few_and_long and small) or potentials.ids is not None or torch.is_grad_enabled():
        return False
    return optional_engine("compiled") is not None


@underflows
def filter(
    prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor
) -> tuple[Tensor, Tensor, Belief]:
    """log p(x_t | x_<t) [B, T], p(z_t | x_<=t) [B, T, k] (zero in the padding) and the last state distribution."""
    return run("filter", prior, transition, potentials, lengths)


@underflows
def smooth(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x) [B, T, k]."""
    return run("smooth", prior, transition, potentials, lengths)


@underflows
def expect(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> reference.Expected:
    """The expected statistics of EM: starts, transitions and emissions."""
    return run("expect", prior, transition, potentials, lengths)


@underflows
def viterbi(prior: Belief, transition: AnyTransition, potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The Viterbi path [B, T] and its log-probability [B]."""
    return run("viterbi", prior, transition, potentials, lengths)


def sample(transition: AnyTransition, filtered: Tensor, lengths: Tensor, uniform: Tensor) -> Tensor:
    """Sample paths [B, T] from p(z | x), given p(z_t | x_<=t) [B, T, k] and uniform numbers [B, T]."""
    chosen = engine(transition, filtered)
    plain = chosen in (reference, homogeneous)
    problem = transition, filtered, lengths, uniform if plain else uniform.to(filtered.dtype)
    if not step_by_step(chosen.sample, transition, filtered.shape[1]):
        return chosen.sample(*problem)
    return replay.replayed(f"{chosen.__name__}.sample", chosen.sample, problem, 0)
