"""The functions of reference.py for a dense transition on a GPU in float32, as CUDA graphs of
`trellis.kernels.scan.dense`. If gradients are recorded, or if sequences are long, homogeneous.py is used instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trellis.engines import homogeneous, reference
from trellis.engines.replay import LOCK, LONGEST
from trellis.errors import TrellisError
from trellis.kernels.scan.passes import Memory, inverted, memory_needed
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

Problem = tuple[Belief, Dense, Potentials, Tensor]


@cache
def memory_of(device: torch.device) -> Memory:
    return Memory(device)


def fits(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> bool:
    """Whether these CUDA graphs can be used: no gradients or other graphs are being recorded, and the problem is
    neither empty nor long."""
    given = prior.probs, transition.matrix, potentials.table
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return False
    if potentials.table.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return 0 < potentials.rows.numel() <= LONGEST * len(lengths) and potentials.table.numel() > 0


class Run:
    """One problem, copied into the memory that the CUDA graphs use, except the table, which is read in place. Results
    are copied out of this memory."""

    def __init__(self, prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> None:
        self.prior, self.matrix = prior.probs.to(torch.float32), transition.matrix.contiguous()
        self.table, self.lengths = potentials.table.contiguous(), lengths.contiguous()
        (self.batch, self.steps), self.states = potentials.rows.shape, len(self.matrix)
        self.passes = memory_of(lengths.device).find(self.batch, self.steps, self.states)
        prior_rows = self.prior if self.prior.stride(1) == 1 else self.prior.contiguous()
        self.passes.load(prior_rows, self.matrix, self.table, potentials.rows.contiguous(), self.lengths)

    def log_norms(self) -> Tensor:
        """log p(x_t | x_<t): [B, T], zero in the padding and -inf where impossible."""
        return self.passes.logs[: self.batch, : self.steps].clone()

    def score(self) -> tuple[Tensor, Belief]:
        self.passes.forward()
        return self.log_norms(), Belief(self.passes.ends[0, : self.batch, : self.states].clone())

    def filter(self) -> tuple[Tensor, Tensor, Belief]:
        log_norms, belief = self.score()
        joint = self.passes.joint[: self.steps, : self.batch, : self.states].transpose(0, 1)
        inside = torch.arange(self.steps, device=self.lengths.device) < self.lengths[:, None]
        scale = inverted(self.passes.norm[: self.steps, : self.batch].T) * inside
        return log_norms, joint * scale.unsqueeze(-1), belief

    def smooth(self) -> tuple[Tensor, Tensor]:
        self.passes.forward()
        self.passes.backward()
        return self.log_norms(), self.passes.smooth(self.table, self.lengths, self.steps)

    def expect(self) -> reference.Expected:
        self.passes.expect()
        moves = self.passes.moves(self.matrix)
        belief, entry, starts = self.passes.ends[:, : self.batch, : self.states].clone()
        visits = self.passes.visits(self.table)
        return reference.Expected(self.log_norms(), Belief(belief), entry, starts, moves, visits)


def compute(work: Callable[[Run], Any], problem: Problem) -> Any:
    """work(Run(*problem)). If the problem does not fit in memory, the two halves of its batch are processed in turn."""
    try:
        with LOCK, torch.no_grad():
            return work(Run(*problem))
    except torch.cuda.OutOfMemoryError as error:
        with LOCK:
            memory_of(problem[3].device).release()  # the halves need less memory
        batch, steps = problem[2].rows.shape
        if batch == 1:
            states = problem[1].num_states
            need = memory_needed(batch, steps, states) / 2**30
            raise TrellisError(
                f"One sequence of {steps} steps over {states:,} states needs {need:.1f} GiB of GPU memory, which are "
                "not free; shorten the sequences or reduce the number of states."
            ) from error
    return joined(*(compute(work, half) for half in halves(*problem)))


def halves(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> list[Problem]:
    """The first and the second half of the sequences."""
    parts = zip(*(x.chunk(2) for x in (prior.probs, potentials.rows, lengths)), strict=True)
    return [(Belief(p), transition, potentials._replace(rows=rows), some) for p, rows, some in parts]


def joined(first: Any, second: Any) -> Any:
    """Combine the results of two sets of sequences: expected transitions and emissions are added, everything else is
    concatenated."""
    if isinstance(first, Tensor):
        return torch.cat([first, second])
    if isinstance(first, Belief):
        return Belief(torch.cat([first.probs, second.probs]))
    if isinstance(first, reference.Expected):
        whole = reference.Expected(*map(joined, first, second))
        return whole._replace(moves=first.moves + second.moves, visits=first.visits + second.visits)
    return tuple(map(joined, first, second))


def score(*problem: Any) -> tuple[Tensor, Belief]:
    """log p(x_t | x_<t) [B, T] and the last state distribution."""
    if not fits(*problem):
        return homogeneous.score(*problem)
    return compute(Run.score, problem)


def filter(*problem: Any) -> tuple[Tensor, Tensor, Belief]:
    """log p(x_t | x_<t) [B, T], p(z_t | x_<=t) [B, T, K] (zero in the padding) and the last state distribution."""
    if not fits(*problem):
        return homogeneous.filter(*problem)
    return compute(Run.filter, problem)


def smooth(*problem: Any) -> tuple[Tensor, Tensor]:
    """log p(x_t | x_<t) [B, T] and p(z_t | x) [B, T, K]."""
    if not fits(*problem):
        return homogeneous.smooth(*problem)
    return compute(Run.smooth, problem)


def expect(*problem: Any) -> reference.Expected:
    """The expected statistics of EM."""
    if not fits(*problem):
        return homogeneous.expect(*problem)
    return compute(Run.expect, problem)


viterbi, sample = reference.viterbi, reference.sample
