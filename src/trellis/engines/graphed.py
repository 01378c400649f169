"""The functions of reference.py for a dense transition on a GPU in float32, as CUDA graphs of
`trellis.kernels.scan.dense`; homogeneous.py if gradients are recorded, or sequences are long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from trellis.engines import homogeneous, reference
from trellis.errors import TrellisError
from trellis.kernels.scan.passes import Memory, inverted, memory_needed
from trellis.transitions import Dense
from trellis.types import Belief, Potentials

LONGEST = 1024  # steps in a graph
SMALL, MOST = 1 << 22, 32  # numbers of a problem that is copied into a graph of its own; such graphs
LOCK = Lock()  # the memory holds one problem at a time
Problem = tuple[Belief, Dense, Potentials, Tensor]


@cache
def memory_of(device: torch.device) -> Memory:
    return Memory(device)


def fits(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> bool:
    """Whether the passes apply: nothing is being recorded, and the problem is neither empty nor long."""
    given = prior.probs, transition.matrix, potentials.table
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return False
    if potentials.table.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return 0 < potentials.rows.numel() <= LONGEST * len(lengths) and potentials.table.numel() > 0


class Run:
    """One problem in the memory of the passes; results are copied out of it."""

    def __init__(self, prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> None:
        self.prior, self.matrix = prior.probs.to(torch.float32), transition.matrix.contiguous()
        self.table, self.lengths = potentials.table.contiguous(), lengths.contiguous()
        (self.batch, self.steps), self.states = potentials.rows.shape, len(self.matrix)
        self.passes = memory_of(lengths.device).find(self.batch, self.steps, self.states)
        prior_rows = self.prior if self.prior.stride(1) == 1 else self.prior.contiguous()
        self.passes.load(prior_rows, self.matrix, self.table, potentials.rows.contiguous(), self.lengths)

    def log_norms(self) -> Tensor:
        """log c_t: [B, T], zero in the padding and -inf where impossible."""
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
        moves = self.matrix * self.passes.pairs[: self.states, : self.states]
        belief, entry, starts = self.passes.ends[:, : self.batch, : self.states].clone()
        visits = self.passes.visits(self.table)
        return reference.Expected(self.log_norms(), Belief(belief), entry, starts, moves, visits)


class Whole:
    """Some work on problems of one shape, as one CUDA graph with a copy of the problem; for problems so small that
    launching kernels takes longer than running them."""

    made: Any  # in the memory of the graph

    def __init__(self, work: Callable[[Run], Any]) -> None:
        self.work, self.calls = work, 0
        self.replay: Callable[[], None] | None = None

    def __call__(self, problem: Problem) -> Any:
        self.calls += 1
        if self.calls == 1:
            return self.work(Run(*problem))
        given = problem_parts(*problem)
        if self.replay is None:
            self.given = [tensor.clone(memory_format=torch.contiguous_format) for tensor in given]
            self.replay = self.capture(problem_of(*self.given))
        for few in (slice(1), slice(1, 3), slice(3, 5)):  # of one type, and mostly of one layout: one kernel for each
            torch._foreach_copy_(self.given[few], given[few])
        self.replay()
        return rebuilt(self.made, iter(torch._foreach_mul(tensors_in(self.made), 1.0)))  # copies, by one kernel

    def capture(self, problem: Problem) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.made = self.work(Run(*problem))
        return graph.replay


def problem_parts(prior: Belief, transition: Dense, potentials: Potentials, lengths: Tensor) -> list[Tensor]:
    return [prior.probs, transition.matrix, potentials.table, potentials.rows, lengths]


def problem_of(probs: Tensor, matrix: Tensor, table: Tensor, rows: Tensor, lengths: Tensor) -> Problem:
    return Belief(probs), Dense(matrix), Potentials(table, rows), lengths


def tensors_in(made: Any) -> list[Tensor]:
    """The tensors of nested tuples."""
    if isinstance(made, Tensor):
        return [made]
    return [] if made is None else [tensor for part in made for tensor in tensors_in(part)]


def rebuilt(made: Any, found: Iterator[Tensor]) -> Any:
    """The nested tuples with other tensors."""
    if made is None or isinstance(made, Tensor):
        return None if made is None else next(found)
    parts = [rebuilt(part, found) for part in made]
    return made._make(parts) if hasattr(made, "_make") else tuple(parts)


def worked(work: Callable[[Run], Any], problem: Problem) -> Any:
    """The result of some work on a problem; from the second time on as one graph, if the problem is small."""
    given = problem_parts(*problem)
    if not on_gpu(given[0]) or sum(tensor.numel() for tensor in given) > SMALL:
        return work(Run(*problem))
    graphs = memory_of(given[0].device).graphs
    key = work.__name__, *((tensor.shape, tensor.dtype) for tensor in given)
    if key not in graphs and len(graphs) == MOST:
        graphs.clear()
    return graphs.setdefault(key, Whole(work))(problem)


def on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def compute(work: Callable[[Run], Any], problem: Problem) -> Any:
    """The result of some work on a problem; if that does not fit in memory, of its halves."""
    try:
        with LOCK, torch.no_grad():
            return worked(work, problem)
    except torch.cuda.OutOfMemoryError as error:
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
    """Results of two sets of sequences as one: statistics are added, everything else is concatenated."""
    if isinstance(first, Tensor):
        return torch.cat([first, second])
    if isinstance(first, Belief):
        return Belief(torch.cat([first.probs, second.probs]))
    if isinstance(first, reference.Expected):
        whole = reference.Expected(*map(joined, first, second))
        return whole._replace(moves=first.moves + second.moves, visits=first.visits + second.visits)
    return tuple(map(joined, first, second))


def score(*problem: Any) -> tuple[Tensor, Belief]:
    """log c_t [B, T] and the last belief."""
    if not fits(*problem):
        return homogeneous.score(*problem)
    return compute(Run.score, problem)


def filter(*problem: Any) -> tuple[Tensor, Tensor, Belief]:
    """log c_t [B, T], a_t [B, T, K] (zero in the padding) and the last belief."""
    if not fits(*problem):
        return homogeneous.filter(*problem)
    return compute(Run.filter, problem)


def smooth(*problem: Any) -> tuple[Tensor, Tensor]:
    """log c_t [B, T] and p(z_t | x) [B, T, K]."""
    if not fits(*problem):
        return homogeneous.smooth(*problem)
    return compute(Run.smooth, problem)


def expect(*problem: Any) -> reference.Expected:
    """The expected statistics of EM."""
    if not fits(*problem):
        return homogeneous.expect(*problem)
    return compute(Run.expect, problem)


viterbi, sample = reference.viterbi, reference.sample
