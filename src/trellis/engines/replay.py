"""Run a function of a small problem on a GPU as one CUDA graph, because launching its kernels one by one would take
longer than running them. The problem is copied into the memory of the graph, and the results are copied out of it.
Threads share the graphs; they must use the same CUDA stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trellis.transitions import Dense, Stacked

SMALL = 1 << 22  # size limit: numbers in the inputs of a problem, or in its largest intermediate result
BUDGET = 1 << 23  # limit for the sum of these sizes over all problems that have a graph
LONGEST = 1024  # maximum steps in a graph
Problem = tuple[Any, ...]
Graphs = dict[Hashable, Any]


class Room(NamedTuple):
    """The captured graphs, the factor by which the size limits are multiplied, and the number of calls with a shape
    that run without a graph before one is captured."""

    graphs: Graphs
    larger: int = 1
    patience: int = 1


LOCK = RLock()  # the memory of a graph holds one problem at a time, and only one graph can be captured at a time
ROOM = Room({})
OF_BLOCKS = Room({}, larger=16, patience=4)  # for problems over live states, whose batches vary in length


def replayed(name: Hashable, function: Callable[..., Any], problem: Problem, numbers: int, room: Room = ROOM) -> Any:
    """function(*problem), computed by a CUDA graph if the problem is small and its shape has been seen before.

    `name` identifies the function. `numbers` is how many numbers its largest intermediate result has. The function must
    not synchronise with the device."""
    graphs, larger, patience = room
    given = tensors_in(problem)
    size = max(numbers, sum(tensor.numel() for tensor in given))
    if size > larger * SMALL or not on_gpu(given[0]) or is_recorded(given):
        return function(*problem)
    key = name, described(problem)
    with LOCK:
        if key not in graphs and size + sum(graph.size for graph in graphs.values()) > larger * BUDGET:
            graphs.clear()
        graph = graphs.setdefault(key, Replay(function, size, patience))
    with torch.no_grad():
        return graph(problem)


def replayed_blocks(name: str, function: Callable[..., Any], problem: Problem) -> Any:
    """Like `replayed`, but for larger problems over live states without missing observations. The result is None for
    any other problem, and if the graph does not fit in memory."""
    _, transition, potentials, *_ = problem
    observed = potentials.ids is not None and potentials.all_observed and potentials.ids.shape[1] <= LONGEST
    if not (observed and isinstance(transition, Dense) and on_gpu(potentials.table)):
        return None
    try:
        numbers = potentials.ids.numel() * potentials.ids.shape[-1]
        return replayed(name, function, problem, numbers, OF_BLOCKS)
    except torch.cuda.OutOfMemoryError:
        forget(OF_BLOCKS.graphs)
        return None


def forget(graphs: Graphs) -> None:
    """Free graphs, from which another thread may be choosing."""
    with LOCK:
        graphs.clear()


def on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda and not torch.cuda.is_current_stream_capturing()


def is_recorded(given: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)


class Replay:
    """A function for problems of one shape. Its first few calls run directly, which also compiles its kernels; then it
    is captured as a CUDA graph, and all further calls replay the graph. A call that raises does not count."""

    made: Any  # the results, in the memory of the graph

    def __init__(self, function: Callable[..., Any], size: int, patience: int) -> None:
        self.function, self.size, self.patience, self.calls = function, size, patience, 0
        self.replay: Callable[[], None] | None = None

    def __call__(self, problem: Problem) -> Any:
        run = self.run if self.calls >= self.patience else self.function
        found = run(*problem)
        self.calls += 1
        return found

    def run(self, *problem: Any) -> Any:
        given = tensors_in(problem)
        with LOCK:
            if self.replay is None:
                places = [tensor.clone(memory_format=torch.contiguous_format) for tensor in given]
                self.replay, self.given = self.capture(rebuilt(problem, iter(places))), places
            for pairs in by_kind(self.given, given):  # one kernel for each kind
                inputs, values = zip(*pairs, strict=True)
                torch._foreach_copy_(inputs, values)
            self.replay()
            return rebuilt(self.made, iter(copies(tensors_in(self.made))))

    def capture(self, problem: Problem) -> Callable[[], None]:
        graph, errors = torch.cuda.CUDAGraph(), []
        with warnings.catch_warnings(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            warnings.simplefilter("ignore")  # such as that the graph is empty, if there is an error
            try:
                self.made = self.function(*problem)
            except torch.cuda.OutOfMemoryError as error:
                errors.append(error)
        if errors:
            raise errors.pop()  # which would otherwise keep itself and the graph alive
        return graph.replay


def by_kind(places: list[Tensor], values: list[Tensor]) -> list[list[tuple[Tensor, Tensor]]]:
    """Pairs of tensors, grouped by data type and layout."""
    found: dict[Hashable, list[tuple[Tensor, Tensor]]] = {}
    for pair in zip(places, values, strict=True):
        found.setdefault((pair[1].dtype, pair[1].is_contiguous()), []).append(pair)
    return list(found.values())


def copies(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of tensors; all floating-point tensors are copied by one kernel."""
    numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
    found = iter(torch._foreach_mul(numbers, 1.0) if numbers else [])
    return [next(found) if tensor.is_floating_point() else tensor.clone() for tensor in tensors]


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of nested tuples and dense transitions."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Dense | Stacked):
        return [value.matrix]
    return [tensor for part in value for tensor in tensors_in(part)] if isinstance(value, tuple) else []


def rebuilt(value: Any, found: Iterator[Tensor]) -> Any:
    """A copy of nested tuples and dense transitions, with the tensors replaced by those of `found`, in order."""
    if isinstance(value, Tensor):
        return next(found)
    if isinstance(value, Dense | Stacked):
        return type(value)(next(found))
    if not isinstance(value, tuple):
        return value
    parts = [rebuilt(part, found) for part in value]
    return value._make(parts) if hasattr(value, "_make") else tuple(parts)


def described(value: Any) -> Hashable:
    """The properties in which two problems must agree to use the same graph."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, Dense | Stacked):
        return type(value), described(value.matrix)
    return tuple(map(described, value)) if isinstance(value, tuple) else value
